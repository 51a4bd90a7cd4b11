/* The TSC measured against the kernel's clock; whether it may be trusted is the caller's to say. */
#include "clock.h"

#include <errno.h>

#define READINGS 1000
#define TRIES 16

#ifdef __x86_64__
struct moment {
	uint64_t ticks, raw_ns;
};

/* Both clocks at one moment: the closest of several tries, as anything may come between two readings. */
static struct moment both_clocks(void)
{
	uint64_t best = UINT64_MAX;
	struct moment found = {0, 0};

	for (int i = 0; i < TRIES; i++) {
		uint64_t before = prdma_raw_ns(), ticks = __builtin_ia32_rdtsc(), after = prdma_raw_ns();

		if (after - before < best) {
			best = after - before;
			found = (struct moment){ticks, before + (after - before) / 2};
		}
	}
	return found;
}

int prdma_clock_calibrate(struct prdma_clock *clock, int64_t for_ns)
{
	struct timespec pause = {for_ns / 1000000000, for_ns % 1000000000};
	struct moment from = both_clocks(), to;

	/* What is awaited is time itself: the further apart both readings, the better the ratio. */
	while (nanosleep(&pause, &pause) && errno == EINTR)
		;
	to = both_clocks();
	if (to.ticks <= from.ticks || to.raw_ns <= from.raw_ns)
		return -ENOTSUP;
	clock->mult = (uint64_t)(((unsigned __int128)(to.raw_ns - from.raw_ns) << 32) / (to.ticks - from.ticks));
	return clock->mult ? 0 : -ENOTSUP;
}
#else
int prdma_clock_calibrate(struct prdma_clock *clock, int64_t for_ns)
{
	(void)for_ns;
	clock->mult = 0;
	return -ENOTSUP;
}
#endif

uint64_t prdma_clock_cost_ps(const struct prdma_clock *clock)
{
	uint64_t from = prdma_raw_ns(), last = 0;

	for (int i = 0; i < READINGS; i++) {
		last = prdma_ticks(clock);
		__asm__ volatile("" : : "r"(last));
	}
	return (prdma_raw_ns() - from) * 1000 / READINGS;
}

int64_t prdma_clock_ago_ns(const struct prdma_clock *clock, uint64_t ticks)
{
	return (int64_t)prdma_ticks_to_ns(clock, prdma_ticks(clock) - ticks);
}
