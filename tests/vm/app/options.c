// SPDX-License-Identifier: MIT OR GPL-2.0
/* The command line. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "app.h"

static void usage(void)
{
	fprintf(stderr, "usage: hsakmt-app --status FILE [--gpus N] [--buffers N] [--bytes N] [--no-queues]\n"
			"                  [--share] [--children N]\n");
	exit(2);
}

static uint32_t number(const char *word, uint32_t most)
{
	char *end;
	unsigned long value = strtoul(word, &end, 10);

	if (*end || end == word || value > most)
		usage();
	return value;
}

void options_parse(struct options *options, int count, char **words)
{
	static const struct option known[] = {
		{ "status", required_argument, NULL, 's' },
		{ "gpus", required_argument, NULL, 'g' },
		{ "buffers", required_argument, NULL, 'b' },
		{ "bytes", required_argument, NULL, 'n' },
		{ "no-queues", no_argument, NULL, 'q' },
		{ "share", no_argument, NULL, 'x' },
		{ "children", required_argument, NULL, 'c' },
		{ 0 },
	};
	int option;

	*options = (struct options){ .buffers = 1, .bytes = 64 << 10, .queues = true };
	while ((option = getopt_long(count, words, "", known, NULL)) != -1) {
		switch (option) {
		case 's':
			options->status = optarg;
			break;
		case 'g':
			options->gpus = number(optarg, MOST_GPUS);
			break;
		case 'b':
			options->buffers = number(optarg, 1024);
			break;
		case 'n':
			options->bytes = number(optarg, 1 << 30);
			break;
		case 'q':
			options->queues = false;
			break;
		case 'x':
			options->share = true;
			break;
		case 'c':
			options->children = number(optarg, 1024);
			break;
		default:
			usage();
		}
	}
	if (optind != count || !options->status || !options->bytes || options->bytes % PAGE)
		usage();
	if (options->share && !options->queues)
		usage();
}
