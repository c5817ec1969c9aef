/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * An application on libhsakmt, to be checkpointed: memory of every kind on each GPU, whose every word
 * it checks again and again; a queue of an SDMA engine that moves what the CPU does not see; events.
 *
 *   main.c    options, the loop, the status
 *   memory.c  BOs, and what is to be in them
 *   queue.c   SDMA packets, and how their end is waited for
 *   tree.c    children: some that count, one that has a BO of its parent's
 */
#ifndef APP_H
#define APP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hsakmt/hsakmt.h>

#define MOST_GPUS 16
#define MOST_BOS 16
/* A BO is changed in so many parts, one at a time. */
#define PARTS 8

enum kind {
	/* VRAM that the CPU has mapped. */
	VISIBLE,
	/* VRAM that only the GPU sees. */
	HIDDEN,
	/* Memory of the host, from the driver. */
	GTT,
	/* Memory of the process. */
	USERPTR,
	KINDS,
};

struct bo {
	enum kind kind;
	/* Where GPUs see it, and where the CPU does it too. */
	uint64_t *at;
	size_t bytes;
	/* Tells its pattern from those of others. */
	uint64_t seed;
	/* Which generation of its pattern each part has. */
	uint64_t generation[PARTS];
};

struct queue {
	HsaQueueResource resource;
	uint32_t *ring;
	uint64_t written;
	/* Counts the work that is done, in memory that the CPU sees. */
	volatile uint64_t *fence;
	uint64_t fences;
	HsaEvent *done;
};

struct gpu {
	unsigned int node;
	struct bo bos[MOST_BOS];
	unsigned int count;
	struct queue queue;
	/* The CPU's window on hidden memory. */
	uint64_t *window;
	HsaEvent *set;
	HsaEvent *unset;
};

/* Ends the process: writes why to the status file first. */
_Noreturn void wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Ends the process if a call of libhsakmt has failed. */
void must(HSAKMT_STATUS status, const char *call);

/* memory.c */
void *allocate(unsigned int node, size_t bytes, enum kind kind, bool executable);
void memory_init(struct gpu *gpu, size_t bytes, unsigned int of_each, uint64_t seed);
void memory_change(struct gpu *gpu, uint64_t generation);
void memory_check(struct gpu *gpu);
uint64_t pattern(uint64_t seed, uint64_t generation, size_t word);

/* queue.c */
void queue_init(struct gpu *gpu);
void queue_copy(struct gpu *gpu, const void *from, void *to, size_t bytes);
void queue_fill(struct gpu *gpu, void *at, uint32_t value, size_t bytes);
/* Waits until all that was queued is done. */
void queue_finish(struct gpu *gpu);

/* tree.c */
void tree_count(unsigned int children, const char *status);
/* A child that shares a BO; it checks what is in it for as long as its parent lives. */
void tree_prepare_sharing(void);
void tree_share(struct gpu *gpu, size_t bytes, const char *status);

#endif
