// SPDX-License-Identifier: MIT OR GPL-2.0
/* Rounds: check all, change a part, say so. */
#include <unistd.h>

#include "app.h"

int main(int argc, char **argv)
{
	struct options options;
	uint64_t generation = 0, checks = 0;

	options_parse(&options, argc, argv);
	report_name(options.status, "");
	children_start(&options);
	share_begin(&options);
	gpus_open(&options);
	buffers_create(&options);
	events_create();
	share_give(&options);
	for (;;) {
		checks += buffers_check(generation) + events_check(generation) + share_check();
		report_ok(generation, checks);
		usleep(20000);
		generation++;
		buffers_change(generation);
		events_change(generation);
	}
}
