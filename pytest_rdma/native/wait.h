/* Time, deadlines and stop flags, shared by the waits. */
#ifndef PRDMA_WAIT_H
#define PRDMA_WAIT_H

#include "prdma.h"

#include <time.h>

#define PRDMA_SLICE_NS 20000000 /* how long a sleep may go without looking at the stop flag */

static inline int64_t prdma_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static inline int prdma_stopped(prdma_stop *stop)
{
	return stop && __atomic_load_n(stop, __ATOMIC_ACQUIRE);
}

/* Waits for `events` on fd, at most one slice; 1, 0 when it must be asked again, or a negative errno. */
int prdma_poll_fd(int fd, short events, int64_t deadline_ns);

#endif
