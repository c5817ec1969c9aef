// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * hsakmt-app --status FILE [--gpus N] [--bytes BYTES] [--bos N] [--children N] [--share] [--wait]
 *
 * FILE has a line, as of the last round: `ok ROUND`, or `wrong: WHAT`, with which the process ends.
 * --gpus: so many GPUs, by node; 0 is all. --bytes and --bos: how large, and how many of each kind on
 * each GPU. --children: so many processes that use no GPU; each counts in FILE.N. --share: one that has
 * a BO of ours, and counts in FILE.shared. --wait: a thread that waits for an event that nobody sets.
 */
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app.h"

static const char *status_file;
static struct gpu gpus[MOST_GPUS];

static void report(const char *text)
{
	char name[4096];
	FILE *file;

	snprintf(name, sizeof(name), "%s.new", status_file);
	file = fopen(name, "w");
	if (!file || fprintf(file, "%s\n", text) < 0 || fclose(file) || rename(name, status_file)) {
		perror(status_file);
		exit(2);
	}
}

void wrong(const char *format, ...)
{
	char text[512] = "wrong: ";
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text + strlen(text), sizeof(text) - strlen(text), format, arguments);
	va_end(arguments);
	fprintf(stderr, "%s\n", text);
	report(text);
	exit(1);
}

void must(HSAKMT_STATUS status, const char *call)
{
	if (status != HSAKMT_STATUS_SUCCESS)
		wrong("%s failed: status %d, %s", call, status, strerror(errno));
}

static HsaEvent *new_event(unsigned int node, bool manual, bool set)
{
	HsaEventDescriptor descriptor = { .EventType = HSA_EVENTTYPE_SIGNAL, .NodeId = node };
	HsaEvent *event = NULL;

	must(hsaKmtCreateEvent(&descriptor, manual, set, &event), "hsaKmtCreateEvent");
	return event;
}

/* An event that is set and stays so, and one that is not. */
static void check_events(struct gpu *gpu)
{
	HSAKMT_STATUS status = hsaKmtWaitOnEvent(gpu->set, 0);

	if (status != HSAKMT_STATUS_SUCCESS)
		wrong("node %u: the event that was set is not: status %d", gpu->node, status);
	status = hsaKmtWaitOnEvent(gpu->unset, 0);
	if (status != HSAKMT_STATUS_WAIT_TIMEOUT)
		wrong("node %u: the event that was not set is: status %d", gpu->node, status);
}

static void *wait_for_ever(void *event)
{
	HSAKMT_STATUS status = hsaKmtWaitOnEvent(event, HSA_EVENTTIMEOUT_INFINITE);

	wrong("the event that nobody sets came: status %d", status);
}

static unsigned int open_gpus(unsigned int wanted)
{
	HsaSystemProperties system;
	unsigned int node, count = 0;

	must(hsaKmtOpenKFD(), "hsaKmtOpenKFD");
	must(hsaKmtAcquireSystemProperties(&system), "hsaKmtAcquireSystemProperties");
	for (node = 0; node < system.NumNodes; node++) {
		HsaNodeProperties properties;

		must(hsaKmtGetNodeProperties(node, &properties), "hsaKmtGetNodeProperties");
		if (!properties.NumFComputeCores || count >= MOST_GPUS || (wanted && count >= wanted))
			continue;
		gpus[count++].node = node;
	}
	if (!count || count < wanted)
		wrong("there are %u GPUs", count);
	return count;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "status", required_argument, NULL, 's' },   { "gpus", required_argument, NULL, 'g' },
		{ "bytes", required_argument, NULL, 'b' },    { "bos", required_argument, NULL, 'n' },
		{ "children", required_argument, NULL, 'c' }, { "share", no_argument, NULL, 'S' },
		{ "wait", no_argument, NULL, 'w' },           { NULL, 0, NULL, 0 },
	};
	unsigned int wanted = 0, of_each = 1, children = 0, count, i;
	bool share = false, wait = false;
	size_t bytes = 256 << 10;
	uint64_t round;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 's':
			status_file = optarg;
			break;
		case 'g':
			wanted = strtoul(optarg, NULL, 0);
			break;
		case 'b':
			bytes = strtoul(optarg, NULL, 0);
			break;
		case 'n':
			of_each = strtoul(optarg, NULL, 0);
			break;
		case 'c':
			children = strtoul(optarg, NULL, 0);
			break;
		case 'S':
			share = true;
			break;
		case 'w':
			wait = true;
			break;
		default:
			return 2;
		}
	}
	if (!status_file || of_each * KINDS > MOST_BOS || !bytes || bytes % (4096 * PARTS)) {
		fprintf(stderr, "usage: %s --status FILE ...: see main.c\n", argv[0]);
		return 2;
	}

	tree_count(children, status_file);
	if (share)
		tree_prepare_sharing();
	count = open_gpus(wanted);
	for (i = 0; i < count; i++) {
		queue_init(&gpus[i]);
		memory_init(&gpus[i], bytes, of_each, (uint64_t)i << 8);
		gpus[i].set = new_event(gpus[i].node, true, true);
		gpus[i].unset = new_event(gpus[i].node, false, false);
	}
	if (share)
		tree_share(&gpus[0], bytes, status_file);
	if (wait) {
		HsaEvent *never = new_event(gpus[0].node, false, false);
		pthread_t thread;

		if (pthread_create(&thread, NULL, wait_for_ever, never))
			wrong("no thread");
	}
	for (round = 1;; round++) {
		char text[64];

		for (i = 0; i < count; i++) {
			memory_change(&gpus[i], round);
			memory_check(&gpus[i]);
			check_events(&gpus[i]);
		}
		snprintf(text, sizeof(text), "ok %lu", round);
		report(text);
		usleep(10 * 1000);
	}
}
