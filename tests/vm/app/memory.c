// SPDX-License-Identifier: MIT OR GPL-2.0
/* BOs of every kind, and what is to be in them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "app.h"

#define FILLED 0x5ca1ab1e

static const char *const names[] = { "visible VRAM", "hidden VRAM", "GTT", "userptr" };

/* A word of a BO: other BOs, generations and places have other words. */
uint64_t pattern(uint64_t seed, uint64_t generation, size_t word)
{
	uint64_t x = (seed << 48) ^ (generation << 28) ^ word;

	x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15;
	return x ^ (x >> 29);
}

void *allocate(unsigned int node, size_t bytes, enum kind kind, bool executable)
{
	HsaMemFlags flags = { .Value = 0 };
	HSAuint64 address = 0;
	HSAKMT_STATUS status;
	void *at = NULL;

	flags.ui32.PageSize = HSA_PAGE_SIZE_4KB;
	flags.ui32.ExecuteAccess = executable;
	flags.ui32.HostAccess = kind != HIDDEN;
	flags.ui32.NonPaged = 1;
	flags.ui32.NoNUMABind = 1;
	if (kind == USERPTR) {
		/* Memory of the process, which it registers. */
		at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (at == MAP_FAILED)
			wrong("no memory");
		must(hsaKmtRegisterMemory(at, bytes), "hsaKmtRegisterMemory");
	} else {
		/* Host memory is that of node 0. */
		status = hsaKmtAllocMemory(kind == GTT ? 0 : node, bytes, flags, &at);
		if (status != HSAKMT_STATUS_SUCCESS)
			wrong("%zu bytes of %s: status %d, %s", bytes, names[kind], status, strerror(errno));
	}
	must(hsaKmtMapMemoryToGPUNodes(at, bytes, &address, (HsaMemMapFlags){ .Value = 0 }, 1, &node),
	     "hsaKmtMapMemoryToGPUNodes");
	/* One address space for all: where the GPU does not have it, nothing here would work. */
	if (address && address != (uintptr_t)at)
		wrong("%s at %p is at %#lx for the GPU", names[kind], at, address);
	return at;
}

static size_t part_words(const struct bo *bo)
{
	return bo->bytes / sizeof(uint64_t) / PARTS;
}

static void write_part(struct gpu *gpu, struct bo *bo, unsigned int part, uint64_t generation)
{
	size_t i, words = part_words(bo), first = part * words;
	uint64_t *to = bo->kind == HIDDEN ? gpu->window : bo->at + first;

	for (i = 0; i < words; i++)
		to[i] = pattern(bo->seed, generation, first + i);
	if (bo->kind == HIDDEN) {
		queue_copy(gpu, to, bo->at + first, words * sizeof(*to));
		queue_finish(gpu);
	}
	bo->generation[part] = generation;
}

void memory_init(struct gpu *gpu, size_t bytes, unsigned int of_each, uint64_t seed)
{
	unsigned int n, part;

	gpu->window = allocate(gpu->node, bytes, GTT, false);
	for (n = 0; n < of_each * KINDS; n++) {
		struct bo *bo = &gpu->bos[gpu->count++];

		bo->kind = n % KINDS;
		bo->bytes = bytes;
		bo->seed = seed + n + 1;
		bo->at = allocate(gpu->node, bytes, bo->kind, false);
		for (part = 0; part < PARTS; part++)
			write_part(gpu, bo, part, 0);
	}
}

/* Another part each time, through the CPU, or the queue where the CPU does not see the memory. */
void memory_change(struct gpu *gpu, uint64_t generation)
{
	unsigned int n;

	for (n = 0; n < gpu->count; n++)
		write_part(gpu, &gpu->bos[n], generation % PARTS, generation);
}

static void check_words(const struct gpu *gpu, const struct bo *bo, const uint64_t *words, const char *by)
{
	size_t i, of_part = part_words(bo);

	for (i = 0; i < of_part * PARTS; i++) {
		uint64_t expected = pattern(bo->seed, bo->generation[i / of_part], i);

		if (words[i] != expected)
			wrong("node %u: %s at %p, by the %s: word %zu is %#lx, not %#lx", gpu->node,
			      names[bo->kind], (void *)bo->at, by, i, words[i], expected);
	}
}

/* All words of all BOs, as the CPU sees them and as the GPU does. */
void memory_check(struct gpu *gpu)
{
	unsigned int n;
	size_t i;

	for (n = 0; n < gpu->count; n++) {
		struct bo *bo = &gpu->bos[n];
		const uint32_t *filled = (const uint32_t *)gpu->window;

		if (bo->kind != HIDDEN)
			check_words(gpu, bo, bo->at, "CPU");
		queue_fill(gpu, gpu->window, FILLED, bo->bytes);
		queue_finish(gpu);
		for (i = 0; i < bo->bytes / sizeof(*filled); i += 1021)
			if (filled[i] != FILLED)
				wrong("node %u: a fill left %#x at %zu", gpu->node, filled[i], i);
		queue_copy(gpu, bo->at, gpu->window, bo->bytes);
		queue_finish(gpu);
		check_words(gpu, bo, gpu->window, "GPU");
	}
}
