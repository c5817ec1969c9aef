// SPDX-License-Identifier: MIT OR GPL-2.0
/* A user queue of an SDMA engine. Packets as in Linux's sdma_v4_0.c and vega10_sdma_pkt_open.h. */
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "app.h"

#define RING_BYTES (64 << 10)
#define MOST_BYTES (1 << 20)

#define OP_COPY 1
#define OP_FENCE 5
#define OP_TRAP 6
#define OP_FILL (11 | 2u << 30)

/* The machine may be slow; an engine that needs longer hangs. */
#define PATIENCE_S 120

static uint32_t low(const volatile void *at)
{
	return (uint32_t)(uintptr_t)at;
}

static uint32_t high(const volatile void *at)
{
	return (uint32_t)((uintptr_t)at >> 32);
}

void queue_init(struct gpu *gpu)
{
	struct queue *queue = &gpu->queue;
	HsaEventDescriptor descriptor = { .EventType = HSA_EVENTTYPE_SIGNAL, .NodeId = gpu->node };

	queue->ring = allocate(gpu->node, RING_BYTES, GTT, true);
	memset(queue->ring, 0, RING_BYTES);
	queue->fence = allocate(gpu->node, 4096, GTT, false);
	*queue->fence = 0;
	must(hsaKmtCreateEvent(&descriptor, false, false, &queue->done), "hsaKmtCreateEvent");
	must(hsaKmtCreateQueue(gpu->node, HSA_QUEUE_SDMA, 100, HSA_QUEUE_PRIORITY_NORMAL, queue->ring,
			       RING_BYTES, NULL, &queue->resource),
	     "hsaKmtCreateQueue");
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

/* Waits for room in the ring: packets wait in it until the engine has read them. */
static void wait_for_room(struct gpu *gpu, size_t bytes)
{
	struct queue *queue = &gpu->queue;
	double until = now() + PATIENCE_S;

	while (queue->written + bytes - *(volatile uint64_t *)queue->resource.Queue_read_ptr_aql > RING_BYTES) {
		if (now() > until)
			wrong("node %u: the ring stays full", gpu->node);
		usleep(200);
	}
}

static void put(struct gpu *gpu, const uint32_t *words, size_t count)
{
	struct queue *queue = &gpu->queue;
	size_t i;

	wait_for_room(gpu, count * sizeof(*words));
	for (i = 0; i < count; i++)
		queue->ring[(queue->written / sizeof(*words) + i) % (RING_BYTES / sizeof(*words))] = words[i];
	queue->written += count * sizeof(*words);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	*(volatile uint64_t *)queue->resource.Queue_write_ptr_aql = queue->written;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	*(volatile uint64_t *)queue->resource.Queue_DoorBell_aql = queue->written;
}

void queue_copy(struct gpu *gpu, const void *from, void *to, size_t bytes)
{
	size_t at, piece;

	for (at = 0; at < bytes; at += piece) {
		const char *source = (const char *)from + at;
		char *target = (char *)to + at;

		piece = bytes - at < MOST_BYTES ? bytes - at : MOST_BYTES;
		put(gpu,
		    (const uint32_t[]){ OP_COPY, piece - 1, 0, low(source), high(source), low(target),
					high(target) },
		    7);
	}
}

void queue_fill(struct gpu *gpu, void *at, uint32_t value, size_t bytes)
{
	size_t done, piece;

	for (done = 0; done < bytes; done += piece) {
		char *target = (char *)at + done;

		piece = bytes - done < MOST_BYTES ? bytes - done : MOST_BYTES;
		put(gpu, (const uint32_t[]){ OP_FILL, low(target), high(target), value, piece - 1 }, 5);
	}
}

/* A fence that counts, one that names the event, and the interrupt that signals it. */
void queue_finish(struct gpu *gpu)
{
	struct queue *queue = &gpu->queue;
	volatile uint32_t *mailbox = (volatile uint32_t *)(uintptr_t)queue->done->EventData.HWData2;
	double until = now() + PATIENCE_S;
	uint32_t id = queue->done->EventId;

	queue->fences++;
	put(gpu, (const uint32_t[]){ OP_FENCE, low(queue->fence), high(queue->fence), queue->fences }, 4);
	put(gpu, (const uint32_t[]){ OP_FENCE, low(mailbox), high(mailbox), id }, 4);
	put(gpu, (const uint32_t[]){ OP_TRAP, id }, 2);
	while ((uint32_t)*queue->fence != (uint32_t)queue->fences) {
		hsaKmtWaitOnEvent(queue->done, 1000);
		if (now() > until)
			wrong("node %u: the engine did %lu of %lu", gpu->node, (unsigned long)*queue->fence,
			      queue->fences);
	}
}
