/* The clock of a run: ticks, and how many nanoseconds they are. */
#ifndef PRDMA_CLOCK_H
#define PRDMA_CLOCK_H

#include "loops.h"

#include <time.h>

static inline uint64_t prdma_raw_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_RAW, &now);
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static inline uint64_t prdma_ticks(const struct prdma_clock *clock)
{
#ifdef __x86_64__
	if (clock->mult)
		return __builtin_ia32_rdtsc();
#endif
	(void)clock;
	return prdma_raw_ns();
}

static inline uint64_t prdma_ticks_to_ns(const struct prdma_clock *clock, uint64_t ticks)
{
	return clock->mult ? (uint64_t)(((unsigned __int128)ticks * clock->mult) >> 32) : ticks;
}

static inline uint64_t prdma_ns_to_ticks(const struct prdma_clock *clock, uint64_t ns)
{
	return clock->mult ? (uint64_t)(((unsigned __int128)ns << 32) / clock->mult) : ns;
}

#endif
