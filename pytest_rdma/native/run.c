/* Posting from prebuilt rings and taking completions: only what changes of a request is touched. */
#include "run.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#define CHUNK 32
#define SETTLE_NS 20000000

uint64_t prdma_now(struct prdma_run *run)
{
	return run->now = prdma_ticks(&run->clock);
}

static int fail(struct prdma_run *run, int rc)
{
	if (!run->rc)
		run->rc = rc;
	return rc;
}

static uint32_t wrap(uint64_t slot, uint32_t length)
{
	return (uint32_t)(slot >= length ? slot - length : slot);
}

/*
 * Turns the signal of those requests before number `upto` that are to complete; called again, it turns it back, as the
 * provider copies what it is given. Returns the number of the next after them.
 */
static uint64_t turn_signals(const struct prdma_run *run, const struct prdma_lane *lane, uint64_t upto)
{
	uint64_t at = lane->next_signal;

	for (; at < upto; at += run->signal_every)
		prdma_sends(lane)[wrap(lane->send_slot + (at - lane->posted), lane->sends_length)].send_flags ^=
			IBV_SEND_SIGNALED;
	return at;
}

/*
 * Whether the last of a list must complete though its turn has not come: it ends the run, or what follows could find
 * no room while nothing in flight would ever complete.
 */
static int must_signal(const struct prdma_run *run, const struct prdma_lane *lane, uint64_t upto, uint64_t next)
{
	uint64_t unsignaled = upto + run->signal_every - next - 1;

	return unsignaled && (upto == lane->send_target || unsignaled > run->depth - run->batch);
}

/* How many of a list the provider took before it refused `bad`. */
static uint32_t taken(const struct ibv_send_wr *from, const struct ibv_send_wr *bad, uint32_t n)
{
	uint32_t count = 0;

	for (; bad && from != bad && count < n; from = from->next)
		count++;
	return count < n ? count : 0;
}

static int refused(struct prdma_run *run, struct prdma_lane *lane, int rc, const struct ibv_send_wr *bad, uint32_t n)
{
	n = taken(&prdma_sends(lane)[lane->send_slot], bad, n);
	lane->posted += n;
	lane->send_slot = wrap((uint64_t)lane->send_slot + n, lane->sends_length);
	return fail(run, prdma_normalise(rc));
}

/* Up to which number whole lists may go as they are: none completes before its turn, ends the run or fills the queue. */
static uint64_t quiet_until(const struct prdma_run *run, const struct prdma_lane *lane)
{
	uint64_t until = lane->next_signal, full = until + 1 + run->depth - run->batch - run->signal_every;

	if (run->signal_every == 1)
		return PRDMA_ENDLESS;
	if (full < until)
		until = full;
	return lane->send_target - 1 < until ? lane->send_target - 1 : until;
}

/* Posts whole lists of which nothing changes. */
static int post_quiet(struct prdma_run *run, struct prdma_lane *lane, uint64_t end)
{
	struct ibv_send_wr *ring = prdma_sends(lane), *bad = NULL;
	const uint32_t batch = run->batch, length = lane->sends_length;
	struct ibv_qp *qp = prdma_qp(lane);
	uint32_t slot = lane->send_slot;
	uint64_t posted = lane->posted;
	int rc = 0;

	for (; posted + batch <= end; posted += batch) {
		struct ibv_send_wr *first = &ring[slot], *last = &ring[wrap((uint64_t)slot + batch - 1, length)];
		struct ibv_send_wr *after = last->next;

		last->next = NULL;
		rc = qp->context->ops.post_send(qp, first, &bad);
		last->next = after;
		if (rc)
			break;
		slot = (uint32_t)(after - ring);
	}
	run->post_calls += (posted - lane->posted) / batch;
	lane->posted = posted;
	lane->send_slot = slot;
	return rc ? refused(run, lane, rc, bad, batch) : 0;
}

/* Posts one list in which some requests are to complete. */
static int post_marked(struct prdma_run *run, struct prdma_lane *lane, uint32_t n)
{
	struct ibv_send_wr *first = &prdma_sends(lane)[lane->send_slot], *bad = NULL;
	struct ibv_send_wr *last = &prdma_sends(lane)[wrap((uint64_t)lane->send_slot + n - 1, lane->sends_length)];
	struct ibv_send_wr *after = last->next;
	uint64_t upto = lane->posted + n, next = upto;
	struct ibv_qp *qp = prdma_qp(lane);
	int rc, forced = 0;

	if (run->signal_every > 1) {
		next = turn_signals(run, lane, upto);
		forced = must_signal(run, lane, upto, next);
	}
	if (forced)
		last->send_flags ^= IBV_SEND_SIGNALED;
	last->next = NULL;
	rc = qp->context->ops.post_send(qp, first, &bad);
	last->next = after;
	if (forced)
		last->send_flags ^= IBV_SEND_SIGNALED;
	if (run->signal_every > 1)
		turn_signals(run, lane, upto);
	run->post_calls++;
	if (rc)
		return refused(run, lane, rc, bad, n);
	lane->next_signal = forced ? upto - 1 + run->signal_every : next;
	lane->posted = upto;
	lane->send_slot = (uint32_t)(after - prdma_sends(lane));
	return 0;
}

int prdma_post_list(struct prdma_run *run, struct prdma_lane *lane, uint32_t n)
{
	int quiet = n == run->batch && lane->posted + n <= quiet_until(run, lane);

	return quiet ? post_quiet(run, lane, lane->posted + n) : post_marked(run, lane, n);
}

int prdma_post_lists(struct prdma_run *run, struct prdma_lane *lane)
{
	uint64_t room = lane->completed + run->depth, quiet = quiet_until(run, lane);
	uint32_t n;
	int rc;

	if (quiet > lane->send_target)
		quiet = lane->send_target;
	rc = post_quiet(run, lane, quiet < room ? quiet : room);
	if (rc)
		return rc;
	n = prdma_room(run, lane);
	return n ? post_marked(run, lane, n) : 0;
}

int prdma_repost(struct prdma_run *run, struct prdma_lane *lane, uint32_t n)
{
	struct ibv_recv_wr *ring = (struct ibv_recv_wr *)(uintptr_t)lane->recvs, *bad = NULL;
	struct ibv_recv_wr *last = &ring[wrap((uint64_t)lane->recv_slot + n - 1, lane->recvs_length)];
	struct ibv_recv_wr *after = last->next;
	struct ibv_qp *qp = prdma_qp(lane);
	int rc;

	last->next = NULL;
	rc = qp->context->ops.post_recv(qp, &ring[lane->recv_slot], &bad);
	last->next = after;
	if (rc)
		return fail(run, prdma_normalise(rc));
	lane->recv_posted += n;
	lane->recv_slot = wrap((uint64_t)lane->recv_slot + n, lane->recvs_length);
	return 0;
}

static void keep_error(struct prdma_run *run, const struct ibv_wc *wc, uint64_t message)
{
	if (run->failed && (run->error.status != IBV_WC_WR_FLUSH_ERR || wc->status == IBV_WC_WR_FLUSH_ERR))
		return;
	run->failed = 1;
	run->error_message = message;
	run->error = (struct prdma_wc){.wr_id = wc->wr_id, .status = wc->status, .vendor_err = wc->vendor_err,
				       .qp_num = wc->qp_num};
	fail(run, -EIO);
}

/* How many messages of the lane ended with the one in this slot; 0 when it was not in flight. */
static uint64_t ended_with(const struct prdma_lane *lane, uint32_t slot)
{
	uint64_t n;

	if (slot >= lane->sends_length)
		return 0;
	n = (slot >= lane->done_slot ? slot : slot + (uint64_t)lane->sends_length) - lane->done_slot + 1;
	return n <= prdma_in_flight(lane) ? n : 0;
}

/* The lane's first `n` in flight are done. */
static void retire(struct prdma_run *run, struct prdma_lane *lane, uint64_t n)
{
	lane->completed += n;
	lane->done_slot = wrap(lane->done_slot + n, lane->sends_length);
	run->pending += n;
}

static void take_send(struct prdma_run *run, struct prdma_lane *lane, const struct ibv_wc *wc)
{
	uint64_t n = ended_with(lane, (uint32_t)wc->wr_id);

	if (!n) {
		fail(run, -EPROTO);
	} else if (wc->status == IBV_WC_SUCCESS) {
		retire(run, lane, n);
		lane->signaled++;
	} else {
		if (!run->failed)
			retire(run, lane, n - 1);
		keep_error(run, wc, lane->completed);
	}
}

static void take_recv(struct prdma_run *run, struct prdma_lane *lane, const struct ibv_wc *wc)
{
	uint32_t due;

	if (wc->status != IBV_WC_SUCCESS) {
		keep_error(run, wc, lane->received);
		return;
	}
	lane->received++;
	run->received_bytes += wc->byte_len;
	run->pending += !lane->send_target;
	if (lane->recv_posted >= lane->recv_target)
		return;
	due = ++lane->recv_due;
	if (due >= run->recv_batch || due >= lane->recv_target - lane->recv_posted) {
		lane->recv_due = 0;
		prdma_repost(run, lane, due);
	}
}

static void take(struct prdma_run *run, const struct ibv_wc *wc)
{
	uint32_t number = (uint32_t)(wc->wr_id >> PRDMA_LANE_SHIFT) & 0xffffff;

	if (number >= run->lane_count)
		fail(run, -EPROTO); /* somebody else's: the caller must see to it that there is none */
	else if (wc->wr_id & PRDMA_RECV_BIT)
		take_recv(run, &prdma_lanes(run)[number], wc);
	else
		take_send(run, &prdma_lanes(run)[number], wc);
}

/* Neighbours become one, so that the same room holds twice the time. */
static void fold(struct prdma_series *series)
{
	for (uint32_t i = 0; i < PRDMA_INTERVALS / 2; i++)
		series->counts[i] = series->counts[2 * i] + series->counts[2 * i + 1];
	memset(&series->counts[PRDMA_INTERVALS / 2], 0, sizeof(series->counts) / 2);
	series->used = PRDMA_INTERVALS / 2;
	series->interval_ns *= 2;
}

/* Puts what is pending where it belongs and opens the interval of `now`. */
static void next_interval(struct prdma_run *run, struct prdma_series *series)
{
	uint64_t elapsed = prdma_ticks_to_ns(&run->clock, run->now - run->start), at;

	while ((at = elapsed / series->interval_ns) >= PRDMA_INTERVALS)
		fold(series);
	series->counts[at] += run->pending;
	series->used = (uint32_t)at + 1;
	run->pending = 0;
	run->boundary = run->start + prdma_ns_to_ticks(&run->clock, (at + 1) * series->interval_ns);
}

static void stamp(struct prdma_run *run)
{
	struct prdma_series *series = (struct prdma_series *)(uintptr_t)run->series;

	if (!run->start) /* nothing is sent: time begins with the first arrival */
		run->start = run->boundary = run->last = prdma_now(run);
	if (!series || run->look % run->clock_stride)
		return;
	run->last = prdma_now(run);
	if (run->now >= run->boundary)
		next_interval(run, series);
}

void prdma_series_end(struct prdma_run *run)
{
	struct prdma_series *series = (struct prdma_series *)(uintptr_t)run->series;

	if (series && run->pending && run->start)
		next_interval(run, series);
}

int prdma_reap(struct prdma_run *run)
{
	const uint64_t *cqs = (const uint64_t *)(uintptr_t)run->cqs;
	struct ibv_wc wc[CHUNK];
	int total = 0;

	for (uint32_t i = 0; i < run->cq_count; i++) {
		struct ibv_cq *cq = (struct ibv_cq *)(uintptr_t)cqs[i];
		int n = cq->context->ops.poll_cq(cq, CHUNK, wc);

		if (n < 0)
			return fail(run, prdma_normalise(n));
		for (int k = 0; k < n; k++)
			take(run, &wc[k]);
		total += n;
	}
	run->polls++;
	run->empty_polls += !total;
	if (total)
		stamp(run);
	return run->rc ? run->rc : total;
}

static void mark(struct prdma_mark *mark, uint64_t value, uint64_t now)
{
	if (mark->seen == value)
		return;
	mark->seen = value;
	mark->at = now;
}

void prdma_mark_lanes(struct prdma_run *run)
{
	struct prdma_lane *lane = prdma_lanes(run);

	for (uint32_t i = 0; i < run->lane_count; i++, lane++) {
		mark(&lane->post, lane->posted, run->now);
		mark(&lane->completion, lane->completed, run->now);
		mark(&lane->recv_post, lane->recv_posted, run->now);
		mark(&lane->arrival, lane->received, run->now);
	}
}

/*
 * An idle loop that never offers the processor to others keeps the driver's own work off it where there is but one;
 * one that does so where there are more comes late.
 */
int prdma_look(struct prdma_run *run, int idle)
{
	run->idle = idle ? run->idle + 1 : 0;
	if (run->idle >= run->patience) {
		run->idle = 0;
		sched_yield();
	}
	if (prdma_stopped((prdma_stop *)(uintptr_t)run->stop))
		return fail(run, -ECANCELED);
	if (++run->look % PRDMA_LOOKS)
		return 0;
	if (prdma_now(run) >= run->deadline_at)
		return fail(run, -ETIMEDOUT);
	prdma_mark_lanes(run);
	return 0;
}

void prdma_settle(struct prdma_run *run)
{
	uint64_t until = prdma_now(run) + prdma_ns_to_ticks(&run->clock, SETTLE_NS);

	while (run->error.status == IBV_WC_WR_FLUSH_ERR && prdma_now(run) < until) {
		prdma_reap(run);
		sched_yield();
	}
}
