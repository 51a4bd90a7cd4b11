/* A flow: on each lane up to `depth` requests in flight, posted a list at a time, and receives that are posted again. */
#include "run.h"

#include <errno.h>

static uint64_t begin(const struct prdma_run *run)
{
	return run->flags & PRDMA_SPLIT ? prdma_ticks(&run->clock) : 0;
}

static void end(const struct prdma_run *run, uint64_t from, int64_t *sum)
{
	if (run->flags & PRDMA_SPLIT)
		*sum += (int64_t)(prdma_ticks(&run->clock) - from);
}

/* With a rate limit, whether the next list may go now; its own time counts from the one before, not from now. */
static int is_due(struct prdma_run *run, uint32_t n)
{
	if (prdma_now(run) < run->next_post)
		return 0;
	run->next_post += prdma_ns_to_ticks(&run->clock, run->gap_ps * n / 1000);
	return 1;
}

/* One list on each lane that has room for it: how many lists, or an error. */
static int post_round(struct prdma_run *run)
{
	struct prdma_lane *lane = prdma_lanes(run);
	int posted = 0;

	for (uint32_t i = 0; i < run->lane_count; i++, lane++) {
		uint32_t n = prdma_room(run, lane);

		if (!n || (run->gap_ps && !is_due(run, n)))
			continue;
		if (prdma_post_list(run, lane, n) < 0)
			return run->rc;
		posted++;
	}
	return posted;
}

static int fill(struct prdma_run *run)
{
	uint64_t from = begin(run);
	int rc = 0;

	if (run->lane_count == 1 && !run->gap_ps)
		while (prdma_room(run, prdma_lanes(run)) && !(rc = prdma_post_lists(run, prdma_lanes(run))))
			;
	else
		while ((rc = post_round(run)) > 0)
			;
	end(run, from, &run->post_ns);
	return rc;
}

/* Time is up: each lane ends with a request that completes, one more if the last one does not. */
static void stop_posting(struct prdma_run *run)
{
	struct prdma_lane *lane = prdma_lanes(run);

	for (uint32_t i = 0; i < run->lane_count; i++, lane++)
		lane->send_target = lane->posted + (run->signal_every > 1 &&
						    lane->next_signal + 1 != lane->posted + run->signal_every);
	run->end_at = 0;
}

static int is_done(const struct prdma_run *run, int receives_too)
{
	const struct prdma_lane *lane = prdma_lanes(run);

	for (uint32_t i = 0; i < run->lane_count; i++, lane++)
		if (lane->completed != lane->send_target || (receives_too && lane->received != lane->recv_target))
			return 0;
	return 1;
}

static uint64_t arrived(const struct prdma_run *run)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < run->lane_count; i++)
		sum += prdma_lanes(run)[i].received;
	return sum;
}

/* Told how many arrive in all, and they are there. */
static int has_all(const struct prdma_run *run)
{
	uint64_t told = __atomic_load_n(&run->told, __ATOMIC_ACQUIRE);

	return told && arrived(run) + 1 >= told;
}

/*
 * Stopped while it only receives: a regular end, too. What has arrived by now still counts, which is no more than there
 * were receives; a sender that does not end must not keep us.
 */
static void end_as_told(struct prdma_run *run)
{
	const struct prdma_lane *lane = prdma_lanes(run);
	uint64_t most = 0;

	if (!(run->flags & PRDMA_UNTIL_TOLD) || run->rc != -ECANCELED || !is_done(run, 0))
		return;
	run->rc = 0;
	for (uint32_t i = 0; i < run->lane_count; i++, lane++)
		most += lane->recv_posted;
	while (arrived(run) < most && prdma_reap(run) > 0)
		;
}

static int step(struct prdma_run *run)
{
	uint64_t from;
	int n;

	if (fill(run) < 0)
		return run->rc;
	from = begin(run);
	n = prdma_reap(run);
	if (n)
		end(run, from, &run->poll_ns);
	if (n < 0 || prdma_look(run, !n))
		return run->rc;
	if (run->end_at && (n ? prdma_now(run) : run->now) >= run->end_at)
		stop_posting(run);
	return 0;
}

/* All that is sent has completed: that ends the time of what is sent, and is told to who waits for it. */
static void sent(struct prdma_run *run)
{
	run->sent = 1;
	if (run->start)
		run->sent_at = prdma_now(run);
	if (!is_done(run, 1))
		prdma_run_tell(run);
}

void prdma_flow(struct prdma_run *run)
{
	while (!is_done(run, 0) && !step(run))
		;
	if (!run->rc)
		sent(run);
	while (!run->rc && !is_done(run, 1) && !has_all(run) && !step(run))
		;
	end_as_told(run);
}
