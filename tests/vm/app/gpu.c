// SPDX-License-Identifier: MIT OR GPL-2.0
/* libhsakmt, and its GPUs. */
#include <stdio.h>
#include <unistd.h>

#include "app.h"

struct gpu gpus[MOST_GPUS];
uint32_t gpu_count;

/* The host's memory is that of the first node. */
#define HOST_NODE 0

static bool can_be_used(const HsaNodeProperties *node)
{
	char path[64];

	/* Nodes without compute cores are processors; the files show GPUs that others have as well. */
	if (!node->NumFComputeCores)
		return false;
	snprintf(path, sizeof(path), "/dev/dri/renderD%d", node->DrmRenderMinor);
	return !access(path, R_OK | W_OK);
}

void gpus_open(const struct options *options)
{
	HsaSystemProperties system;
	HsaNodeProperties node;
	uint32_t i;

	must(hsaKmtOpenKFD());
	must(hsaKmtAcquireSystemProperties(&system));
	for (i = 0; i < system.NumNodes && gpu_count < MOST_GPUS; i++) {
		must(hsaKmtGetNodeProperties(i, &node));
		if (can_be_used(&node) && (!options->gpus || gpu_count < options->gpus))
			gpus[gpu_count++] = (struct gpu){ .node = i, .minor = node.DrmRenderMinor };
	}
	if (!gpu_count || gpu_count < options->gpus)
		wrong("only %u GPUs can be used", gpu_count);
	for (i = 0; i < gpu_count; i++)
		if (options->queues)
			queue_create(&gpus[i]);
}

void *gpu_memory(uint32_t node, uint64_t bytes, HsaMemFlags flags)
{
	HSAuint64 unused;
	void *memory = NULL;

	must(hsaKmtAllocMemory(node, bytes, flags, &memory));
	must(hsaKmtMapMemoryToGPU(memory, bytes, &unused));
	return memory;
}

void *host_memory(uint64_t bytes)
{
	HsaMemFlags flags = { .ui32 = { .NonPaged = 1, .HostAccess = 1, .ExecuteAccess = 1, .NoNUMABind = 1 } };

	return gpu_memory(HOST_NODE, bytes, flags);
}
