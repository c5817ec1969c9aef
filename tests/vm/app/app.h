/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * hsakmt-app: an application on ROCm's own libhsakmt that is to be checkpointed.
 *
 * It has memory of every kind on each GPU, events, and an SDMA queue per GPU. Round by round it checks
 * all that it has, changes a part, and says how far it is. Nothing here knows of checkpoints.
 *
 *  options   the command line
 *  report    the status file, and the end when something is wrong
 *  gpu       libhsakmt, and its GPUs
 *  buffer    memory, and what must be in it
 *  queue     user queues of SDMA engines
 *  event     events, and what they must be
 *  share     memory of a GPU that two processes have
 *  children  processes without GPUs
 */
#ifndef HSAKMT_APP_H
#define HSAKMT_APP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hsakmt.h>

#define MOST_GPUS 64
#define PAGE 4096u

struct options {
	/* Where it says how it is. */
	const char *status;
	/* So many GPUs; 0: all. */
	uint32_t gpus;
	/* Buffers of each kind on each GPU, and their size. */
	uint32_t buffers;
	uint32_t bytes;
	bool queues;
	/* A second process has a buffer of the first one too. */
	bool share;
	uint32_t children;
};

void options_parse(struct options *options, int count, char **words);

/* Says in FILE, or FILE.NAME, how far it is. */
void report_name(const char *status, const char *name);
void report_ok(uint64_t generation, uint64_t checks);
/* Says what is wrong, and ends. */
void wrong(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* What libhsakmt is asked for must succeed. */
#define must(call) must_be(call, #call)
void must_be(HSAKMT_STATUS status, const char *call);

struct queue {
	HsaQueueResource resource;
	uint8_t *ring;
	/* How far the ring is written, in bytes, ever. */
	uint64_t written;
	/* Where the engine says that it is done: the number of the last piece of work. */
	volatile uint64_t *fence;
	uint64_t works;
	/* Interrupts of the engine. */
	HsaEvent *done;
};

struct gpu {
	uint32_t node;
	uint32_t minor;
	struct queue queue;
	/* Memory that the CPU and the engine see. */
	uint8_t *bounce;
};

extern struct gpu gpus[MOST_GPUS];
extern uint32_t gpu_count;

void gpus_open(const struct options *options);
/* Memory of a node, mapped to all GPUs, and to the CPU if so asked. */
void *gpu_memory(uint32_t node, uint64_t bytes, HsaMemFlags flags);
/* Host memory for queues and the like. */
void *host_memory(uint64_t bytes);

void queue_create(struct gpu *gpu);
/* These return when the engine has done it. */
void queue_copy(struct gpu *gpu, void *to, const void *from, uint32_t bytes);
void queue_fill(struct gpu *gpu, void *to, uint32_t value, uint32_t bytes);

/* The word of a buffer at a place, in a generation of its contents. */
uint64_t pattern(uint32_t buffer, uint64_t generation, uint64_t place);

void buffers_create(const struct options *options);
/* Checks all words; returns how many. */
uint64_t buffers_check(uint64_t generation);
/* Changes a part of each: their contents are those of this generation then. */
void buffers_change(uint64_t generation);

void events_create(void);
uint64_t events_check(uint64_t generation);
void events_change(uint64_t generation);

/* Before the GPUs are opened. In the child it does not return. */
void share_begin(const struct options *options);
/* Gives the child a buffer. */
void share_give(const struct options *options);
/* Checks its contents. */
uint64_t share_check(void);

/* Before the GPUs are opened. In the children it does not return. */
void children_start(const struct options *options);

#endif
