/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With this page a client tells its server what work it has in flight. So the server knows what a killed client
 * leaves on the GPU. The server maps the page too: nvidia-cuda-mps-server/work.go has the same layout. Times are
 * nanoseconds of CLOCK_MONOTONIC.
 */
#ifndef SIMULATED_WORK_H
#define SIMULATED_WORK_H

#include <stdint.h>
#include <time.h>

enum { work_slots = 1024 };

struct work {
	uint64_t launched;
	uint64_t unused;
	struct { uint64_t begin, end; } launch[work_slots];
};

static inline uint64_t work_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Returns the time at which the last launch ends; 0 before the first launch. */
static inline uint64_t work_end(const struct work *w)
{
	return w->launched ? w->launch[(w->launched - 1) % work_slots].end : 0;
}

/* Notes a launch of ns nanoseconds after the earlier launches. */
static inline void work_launch(struct work *w, uint64_t ns)
{
	uint64_t now = work_now(), begin = work_end(w);
	if (begin < now)
		begin = now;
	w->launch[w->launched % work_slots].begin = begin;
	w->launch[w->launched % work_slots].end = begin + ns;
	__atomic_store_n(&w->launched, w->launched + 1, __ATOMIC_RELEASE);
}

#endif
