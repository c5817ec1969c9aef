// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The status file: `ok GENERATION CHECKS`, or `wrong: ` and what. It is replaced as a whole, so that
 * whoever reads it reads a line.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "app.h"

static char path[4000], next[4096];

void report_name(const char *status, const char *name)
{
	snprintf(path, sizeof(path), "%s%s%s", status, *name ? "." : "", name);
	snprintf(next, sizeof(next), "%s.next", path);
}

static void report(const char *format, va_list words)
{
	FILE *file = fopen(next, "w");

	if (!file || vfprintf(file, format, words) < 0 || fputc('\n', file) < 0 || fclose(file) ||
	    rename(next, path)) {
		perror(path);
		_exit(3);
	}
}

static void say(const char *format, ...)
{
	va_list words;

	va_start(words, format);
	report(format, words);
	va_end(words);
}

void report_ok(uint64_t generation, uint64_t checks)
{
	say("ok %llu %llu", (unsigned long long)generation, (unsigned long long)checks);
}

void wrong(const char *format, ...)
{
	char line[1024];
	va_list words;

	va_start(words, format);
	vsnprintf(line, sizeof(line), format, words);
	va_end(words);
	fprintf(stderr, "hsakmt-app: %s\n", line);
	say("wrong: %s", line);
	_exit(1);
}

void must_be(HSAKMT_STATUS status, const char *call)
{
	if (status != HSAKMT_STATUS_SUCCESS)
		wrong("%s: HSAKMT_STATUS %d", call, status);
}
