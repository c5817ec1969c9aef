// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * User queues of SDMA engines: packets in a ring, a doorbell, and a fence in memory at which the CPU
 * looks. Each piece of work is done before the next: what is to be shown is that a queue goes on after
 * it was stopped at any place.
 */
#include <string.h>
#include <time.h>

#include "app.h"

#define RING_BYTES (64u << 10)
/* The most bytes that each engine copies or fills with one packet. */
#define PACKET_BYTES (1u << 20)

enum { OP_COPY = 1, OP_FENCE = 5, OP_TRAP = 6, OP_FILL = 11 };
#define FILL_WORDS_OF_32 (2u << 30)

void queue_create(struct gpu *gpu)
{
	HsaEventDescriptor descriptor = { .EventType = HSA_EVENTTYPE_SIGNAL, .NodeId = gpu->node };
	struct queue *queue = &gpu->queue;
	uint8_t *page;

	queue->ring = host_memory(RING_BYTES);
	page = host_memory(PAGE);
	memset(page, 0, PAGE);
	queue->fence = (volatile uint64_t *)page;
	must(hsaKmtCreateEvent(&descriptor, false, false, &queue->done));
	must(hsaKmtCreateQueue(gpu->node, HSA_QUEUE_SDMA, 100, HSA_QUEUE_PRIORITY_NORMAL, queue->ring,
			       RING_BYTES, NULL, &queue->resource));
}

static void put(struct queue *queue, const uint32_t *words, uint32_t count)
{
	uint32_t i;

	/* A packet does not go over the end of the ring: before it is what does nothing, a zero a word. */
	while (queue->written % RING_BYTES + count * 4 > RING_BYTES) {
		memset(queue->ring + queue->written % RING_BYTES, 0, 4);
		queue->written += 4;
	}
	for (i = 0; i < count; i++, queue->written += 4)
		memcpy(queue->ring + queue->written % RING_BYTES, &words[i], 4);
}

static uint32_t low(uint64_t value)
{
	return value;
}

static uint32_t high(uint64_t value)
{
	return value >> 32;
}

static void ring(struct queue *queue)
{
	__atomic_store_n(queue->resource.Queue_write_ptr_aql, queue->written, __ATOMIC_RELEASE);
	__atomic_store_n(queue->resource.Queue_DoorBell_aql, queue->written, __ATOMIC_RELEASE);
}

/* Every second piece of work raises an interrupt, and the process sleeps until that. */
static void finish(struct queue *queue)
{
	uint64_t fence = (uintptr_t)queue->fence, slot = queue->done->EventData.HWData2;
	uint32_t work = ++queue->works, event = queue->done->EventId;
	const uint32_t end[] = { OP_FENCE, low(fence), high(fence), work };
	const uint32_t interrupt[] = { OP_FENCE, low(slot), high(slot), event, OP_TRAP, event };
	const struct timespec moment = { .tv_nsec = 100000 };

	put(queue, end, 4);
	if (work % 2) {
		put(queue, interrupt, 4);
		put(queue, interrupt + 4, 2);
	}
	ring(queue);
	if (work % 2)
		must(hsaKmtWaitOnEvent(queue->done, HSA_EVENTTIMEOUT_INFINITE));
	while (*(volatile uint32_t *)queue->fence != work)
		nanosleep(&moment, NULL);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
}

void queue_copy(struct gpu *gpu, void *to, const void *from, uint32_t bytes)
{
	uint64_t source = (uintptr_t)from, target = (uintptr_t)to;

	while (bytes) {
		uint32_t count = bytes < PACKET_BYTES ? bytes : PACKET_BYTES;
		const uint32_t copy[] = { OP_COPY,	count - 1,   0,	 low(source), high(source),
					  low(target), high(target) };

		put(&gpu->queue, copy, 7);
		source += count;
		target += count;
		bytes -= count;
	}
	finish(&gpu->queue);
}

void queue_fill(struct gpu *gpu, void *to, uint32_t value, uint32_t bytes)
{
	uint64_t target = (uintptr_t)to;
	const uint32_t fill[] = { OP_FILL | FILL_WORDS_OF_32, low(target), high(target), value, bytes - 1 };

	put(&gpu->queue, fill, 5);
	finish(&gpu->queue);
}
