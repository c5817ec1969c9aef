// SPDX-License-Identifier: MIT OR GPL-2.0
/* Events of each kind, and what they must be: set or not, in each generation. */
#include "app.h"

enum { ALWAYS, NEVER, MANUAL, AUTO, EVENTS };

static const struct {
	const char *name;
	bool manual, set;
} kinds[] = {
	[ALWAYS] = { "the event that is set", true, true },
	[NEVER] = { "the event that is not set", true, false },
	[MANUAL] = { "the event that is reset", true, false },
	[AUTO] = { "the event that resets itself", false, false },
};

static HsaEvent *events[EVENTS];

void events_create(void)
{
	uint32_t i;

	for (i = 0; i < EVENTS; i++) {
		HsaEventDescriptor descriptor = { .EventType = HSA_EVENTTYPE_SIGNAL, .NodeId = gpus[0].node };

		must(hsaKmtCreateEvent(&descriptor, kinds[i].manual, kinds[i].set, &events[i]));
	}
}

static void expect(uint32_t i, bool set)
{
	HSAKMT_STATUS status = hsaKmtWaitOnEvent(events[i], 0);

	if (status == (set ? HSAKMT_STATUS_SUCCESS : HSAKMT_STATUS_WAIT_TIMEOUT))
		return;
	wrong("%s (%u): expected %s, found HSAKMT_STATUS %d", kinds[i].name, events[i]->EventId,
	      set ? "that it is set" : "that it is not set", status);
}

uint64_t events_check(uint64_t generation)
{
	bool odd = generation % 2;

	expect(ALWAYS, true);
	expect(NEVER, false);
	expect(MANUAL, odd);
	expect(AUTO, odd);
	/* A wait that succeeds takes it away. */
	expect(AUTO, false);
	if (odd)
		must(hsaKmtSetEvent(events[AUTO]));
	return EVENTS;
}

void events_change(uint64_t generation)
{
	if (generation % 2) {
		must(hsaKmtSetEvent(events[MANUAL]));
		must(hsaKmtSetEvent(events[AUTO]));
	} else {
		must(hsaKmtResetEvent(events[MANUAL]));
		must(hsaKmtResetEvent(events[AUTO]));
	}
}
