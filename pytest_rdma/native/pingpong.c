/* Latency: one message under way; the time between two is a round trip, read once a message. */
#include "run.h"

#include <errno.h>

static struct prdma_lane *only_lane(const struct prdma_run *run)
{
	return prdma_lanes(run);
}

static int turn(struct prdma_run *run)
{
	int n = prdma_reap(run);

	return n < 0 || prdma_look(run, !n) ? run->rc : 0;
}

static int post_one(struct prdma_run *run)
{
	struct prdma_lane *lane = only_lane(run);

	while (!prdma_room(run, lane))
		if (turn(run))
			return run->rc;
	return prdma_post_list(run, lane, 1) < 0 ? run->rc : 0;
}

/* The asker is done, and this number does not come any more. */
static int is_over(const struct prdma_run *run, uint64_t number)
{
	uint64_t told = __atomic_load_n(&run->told, __ATOMIC_ACQUIRE);

	return told && number >= told;
}

static int wait_received(struct prdma_run *run, uint64_t n)
{
	while (only_lane(run)->received < n && !is_over(run, n))
		if (turn(run))
			return run->rc;
	return 0;
}

static int wait_completed(struct prdma_run *run)
{
	while (prdma_in_flight(only_lane(run)))
		if (turn(run))
			return run->rc;
	return 0;
}

/*
 * A message by Write ends with its number, as many bytes of it as fit. The last byte is read last, and acquired: what
 * the peer wrote before it is there then. A number that is only partly there equals neither this one nor the last.
 */
static uint64_t load_tail(const struct prdma_run *run)
{
	const uint8_t *tail = (const uint8_t *)(uintptr_t)run->tail_target;
	uint64_t value = 0;

	if (run->tail_bytes == sizeof(value) && run->tail_target % sizeof(value) == 0)
		return __atomic_load_n((const uint64_t *)(uintptr_t)run->tail_target, __ATOMIC_ACQUIRE);
	for (uint32_t i = 0; i < run->tail_bytes; i++)
		value |= (uint64_t)__atomic_load_n(tail + i, __ATOMIC_ACQUIRE) << (8 * i);
	return value;
}

static void store_tail(const struct prdma_run *run, uint64_t number)
{
	uint8_t *tail = (uint8_t *)(uintptr_t)run->tail_source;

	for (uint32_t i = 0; i < run->tail_bytes; i++)
		__atomic_store_n(tail + i, (uint8_t)(number >> (8 * i)), __ATOMIC_RELAXED);
}

static int wait_written(struct prdma_run *run, uint64_t number)
{
	uint64_t mask = run->tail_bytes < 8 ? (UINT64_C(1) << (8 * run->tail_bytes)) - 1 : UINT64_MAX;

	while (load_tail(run) != (number & mask) && !is_over(run, number)) {
		if (prdma_look(run, 1))
			return run->rc;
		/* nothing completes here but what failed, and what makes room */
		if (run->look % PRDMA_LOOKS == 0 && prdma_reap(run) < 0)
			return run->rc;
	}
	return 0;
}

static int receive(struct prdma_run *run, uint64_t number)
{
	return run->kind == PRDMA_PINGPONG_WRITE ? wait_written(run, number) : wait_received(run, number);
}

static int send(struct prdma_run *run, uint64_t number)
{
	if (run->kind == PRDMA_PINGPONG_WRITE)
		store_tail(run, number);
	return post_one(run);
}

static int exchange(struct prdma_run *run, uint64_t number)
{
	if (run->kind == PRDMA_ROUND_TRIP)
		return post_one(run) || wait_completed(run);
	return send(run, number) || receive(run, number);
}

static void ask(struct prdma_run *run)
{
	struct prdma_histogram *histogram = (struct prdma_histogram *)(uintptr_t)run->histogram;
	uint64_t from = run->start, until;

	for (uint64_t number = 1; number <= run->iterations; number++) {
		/* the last request completes, so that none stays in flight */
		if (run->end_at && from >= run->end_at)
			run->iterations = only_lane(run)->send_target = number;
		if (exchange(run, number))
			return;
		until = prdma_now(run);
		prdma_histogram_add(histogram, prdma_ticks_to_ns(&run->clock, until - from));
		from = until;
	}
	run->last = from;
	wait_completed(run);
}

static void answer(struct prdma_run *run)
{
	for (uint64_t number = 1; number <= run->iterations; number++)
		if (receive(run, number) || is_over(run, number) || send(run, number))
			break;
	if (!run->rc)
		wait_completed(run);
}

void prdma_pingpong(struct prdma_run *run)
{
	if (run->flags & PRDMA_RESPONDER)
		answer(run);
	else
		ask(run);
}
