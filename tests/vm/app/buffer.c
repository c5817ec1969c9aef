// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Memory, and what must be in it: each word is another one in each buffer, place and generation. A
 * buffer has stripes, and each generation changes one of them.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "app.h"

#define STRIPES 8

enum kind {
	/* VRAM that the CPU sees. */
	VISIBLE,
	/* VRAM that it does not: only engines reach it. */
	HIDDEN,
	/* Memory of the host that the driver has allocated. */
	GTT,
	/* Memory of the process that the GPUs reach. */
	USER,
	/* VRAM that the CPU does not see and the engine fills. */
	FILLED,
	KINDS,
};

static const char *const names[] = { "visible VRAM", "hidden VRAM", "GTT", "userptr", "filled VRAM" };

struct buffer {
	enum kind kind;
	struct gpu *gpu;
	uint64_t *memory;
};

static struct buffer *buffers;
static uint32_t count, bytes;

uint64_t pattern(uint32_t buffer, uint64_t generation, uint64_t place)
{
	uint64_t word = place + 1;

	word ^= (uint64_t)(buffer + 1) << 40;
	word = (word ^ generation * 0xd6e8feb86659fd93) * 0x9e3779b97f4a7c15;
	return word ^ word >> 29;
}

/* The last generation that changed a stripe. */
static uint64_t generation_of(uint32_t stripe, uint64_t generation)
{
	uint64_t back = (generation + STRIPES - stripe) % STRIPES;

	return generation >= back ? generation - back : 0;
}

static bool is_seen(const struct buffer *buffer)
{
	return buffer->kind != HIDDEN && buffer->kind != FILLED;
}

static void *user_memory(void)
{
	HSAuint64 unused;
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		wrong("no memory");
	memset(memory, 1, bytes);
	must(hsaKmtRegisterMemory(memory, bytes));
	must(hsaKmtMapMemoryToGPU(memory, bytes, &unused));
	return memory;
}

static void *allocate(enum kind kind, struct gpu *gpu)
{
	HsaMemFlags seen = { .ui32 = { .NonPaged = 1, .HostAccess = 1, .NoSubstitute = 1 } };
	HsaMemFlags hidden = { .ui32 = { .NonPaged = 1, .NoSubstitute = 1 } };

	switch (kind) {
	case VISIBLE:
		return gpu_memory(gpu->node, bytes, seen);
	case GTT:
		return host_memory(bytes);
	case USER:
		return user_memory();
	default:
		return gpu_memory(gpu->node, bytes, hidden);
	}
}

static uint32_t words_of_stripe(uint32_t stripe, uint32_t *first)
{
	uint32_t words = bytes / 8, begin = words / STRIPES * stripe;

	*first = begin;
	return (stripe == STRIPES - 1 ? words : words / STRIPES * (stripe + 1)) - begin;
}

static void write_stripe(uint32_t i, uint32_t stripe, uint64_t generation)
{
	struct buffer *buffer = &buffers[i];
	uint32_t first, n, words = words_of_stripe(stripe, &first);
	/* What the CPU sees is changed by both in turn. */
	bool by_engine = !is_seen(buffer) || (buffer->gpu->bounce && generation % 2);
	uint64_t *to = by_engine ? (uint64_t *)buffer->gpu->bounce : buffer->memory + first;

	for (n = 0; n < words; n++)
		to[n] = pattern(i, generation, first + n);
	if (by_engine)
		queue_copy(buffer->gpu, buffer->memory + first, to, words * 8);
}

static void fill(struct buffer *buffer, uint64_t generation)
{
	queue_fill(buffer->gpu, buffer->memory, generation * 0x9e3779b1u, bytes);
}

static void add(enum kind kind, struct gpu *gpu)
{
	uint32_t stripe, i = count++;

	buffers[i] = (struct buffer){ kind, gpu, allocate(kind, gpu) };
	if (kind == FILLED) {
		fill(&buffers[i], 0);
		return;
	}
	for (stripe = 0; stripe < STRIPES; stripe++)
		write_stripe(i, stripe, 0);
}

void buffers_create(const struct options *options)
{
	uint32_t gpu, n;
	enum kind kind;

	bytes = options->bytes;
	buffers = calloc(gpu_count * options->buffers * KINDS, sizeof(*buffers));
	if (!buffers)
		wrong("no memory");
	for (gpu = 0; gpu < gpu_count; gpu++) {
		if (options->queues)
			gpus[gpu].bounce = host_memory(bytes);
		for (n = 0; n < options->buffers; n++)
			for (kind = 0; kind < KINDS; kind++)
				if (options->queues || (kind != HIDDEN && kind != FILLED))
					add(kind, &gpus[gpu]);
	}
}

static void mismatch(uint32_t i, uint64_t place, uint64_t expected, uint64_t found)
{
	wrong("%s %u of GPU %u, byte %llu: expected %#llx, found %#llx", names[buffers[i].kind], i,
	      (unsigned)(buffers[i].gpu - gpus), (unsigned long long)place * 8, (unsigned long long)expected,
	      (unsigned long long)found);
}

static void check(uint32_t i, uint64_t generation)
{
	struct buffer *buffer = &buffers[i];
	const uint64_t *words = buffer->memory;
	uint32_t stripe, place;

	if (!is_seen(buffer)) {
		words = (const uint64_t *)buffer->gpu->bounce;
		memset(buffer->gpu->bounce, 0xee, bytes);
		queue_copy(buffer->gpu, buffer->gpu->bounce, buffer->memory, bytes);
	}
	if (buffer->kind == FILLED) {
		uint32_t value = generation * 0x9e3779b1u;
		uint64_t expected = (uint64_t)value << 32 | value;

		for (place = 0; place < bytes / 8; place++)
			if (words[place] != expected)
				mismatch(i, place, expected, words[place]);
		return;
	}
	for (stripe = 0; stripe < STRIPES; stripe++) {
		uint32_t first, n = words_of_stripe(stripe, &first);
		uint64_t last = generation_of(stripe, generation);

		for (place = first; place < first + n; place++)
			if (words[place] != pattern(i, last, place))
				mismatch(i, place, pattern(i, last, place), words[place]);
	}
}

uint64_t buffers_check(uint64_t generation)
{
	uint32_t i;

	for (i = 0; i < count; i++)
		check(i, generation);
	return (uint64_t)count * (bytes / 8);
}

void buffers_change(uint64_t generation)
{
	uint32_t i;

	for (i = 0; i < count; i++)
		if (buffers[i].kind == FILLED)
			fill(&buffers[i], generation);
		else
			write_stripe(i, generation % STRIPES, generation);
}
