// SPDX-License-Identifier: MIT OR GPL-2.0
/* Processes without GPUs, which count. */
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "app.h"

static void __attribute__((noreturn)) count(const struct options *options, uint32_t child)
{
	uint64_t generation;
	char name[16];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(name, sizeof(name), "child%u", child);
	report_name(options->status, name);
	for (generation = 0;; generation++) {
		report_ok(generation, 0);
		usleep(20000);
	}
}

void children_start(const struct options *options)
{
	uint32_t i;

	for (i = 0; i < options->children; i++) {
		switch (fork()) {
		case -1:
			wrong("no child");
		case 0:
			count(options, i);
		}
	}
}
