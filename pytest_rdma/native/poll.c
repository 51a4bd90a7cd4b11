/* Completions: busy polling, and polling that sleeps on the completion channel. */
#include "wait.h"

#include <errno.h>
#include <sched.h>

#define CHUNK 16
#define LOOKS_PER_CLOCK 64 /* reading the clock can cost a trap under emulation */

static void set_wc(struct prdma_wc *to, const struct ibv_wc *wc)
{
	*to = (struct prdma_wc){
		.wr_id = wc->wr_id,
		.status = wc->status,
		.opcode = wc->opcode,
		.vendor_err = wc->vendor_err,
		.byte_len = wc->byte_len,
		.qp_num = wc->qp_num,
		.src_qp = wc->src_qp,
		.wc_flags = wc->wc_flags,
		.pkey_index = wc->pkey_index,
		.slid = wc->slid,
		.sl = wc->sl,
		.dlid_path_bits = wc->dlid_path_bits,
	};
	if (wc->wc_flags & IBV_WC_WITH_IMM)
		to->imm = be32toh(wc->imm_data);
	else if (wc->wc_flags & IBV_WC_WITH_INV)
		to->imm = wc->invalidated_rkey;
}

static int poll_some(struct ibv_cq *cq, struct prdma_wc *out, int room)
{
	struct ibv_wc wc[CHUNK];
	int n;

	errno = 0;
	n = cq->context->ops.poll_cq(cq, room < CHUNK ? room : CHUNK, wc);
	for (int i = 0; i < n; i++)
		set_wc(&out[i], &wc[i]);
	return n == -1 && errno ? -errno : n;
}

static struct ibv_cq *cq_of(const struct prdma_poll *spec)
{
	return (struct ibv_cq *)(uintptr_t)spec->cq;
}

static struct prdma_wc *wc_of(const struct prdma_poll *spec)
{
	return (struct prdma_wc *)(uintptr_t)spec->wc;
}

static prdma_stop *stop_of(const struct prdma_poll *spec)
{
	return (prdma_stop *)(uintptr_t)spec->stop;
}

/* Takes what is there now; `got` were taken before. Returns how many there are in all, or the provider's error. */
static int drain(const struct prdma_poll *spec, int got)
{
	int n = 0;

	while (got < spec->max && (n = poll_some(cq_of(spec), wc_of(spec) + got, spec->max - got)) > 0)
		got += n;
	return n < 0 && !got ? n : got;
}

/* The clock is read, and the processor offered to others, only once in many looks. */
static int time_is_up(int64_t deadline_ns, unsigned int look)
{
	if (look % LOOKS_PER_CLOCK)
		return 0;
	if (look)
		sched_yield();
	return prdma_now_ns() >= deadline_ns;
}

int prdma_poll(const struct prdma_poll *spec)
{
	int got = 0, n;

	for (unsigned int look = 0;; look++) {
		n = poll_some(cq_of(spec), wc_of(spec) + got, spec->max - got);
		if (n < 0)
			return got ? got : n;
		got += n;
		if (got >= spec->want || got >= spec->max)
			return n ? drain(spec, got) : got;
		if (prdma_stopped(stop_of(spec)))
			return got ? got : -ECANCELED;
		if (!n && time_is_up(spec->deadline_ns, look))
			return got;
	}
}

int prdma_req_notify(struct ibv_cq *cq, int solicited_only)
{
	int rc;

	errno = 0;
	rc = cq->context->ops.req_notify_cq(cq, solicited_only);
	if (rc > 0)
		return -rc;
	return rc == -1 && errno ? -errno : rc;
}

/*
 * A completion that comes between the last look and the arming makes no event, hence the look after arming
 * (ibv_req_notify_cq(3), ibv_get_cq_event(3)).
 */
int prdma_poll_events(const struct prdma_poll *spec, struct ibv_comp_channel *channel,
		      const struct prdma_verbs *verbs, int solicited_only)
{
	uint64_t ignored;
	int got = 0, rc = 1;

	while (rc > 0) {
		rc = prdma_req_notify(cq_of(spec), solicited_only);
		if (rc < 0)
			break;
		rc = drain(spec, got);
		if (rc < 0 || rc >= spec->want || rc >= spec->max)
			return rc;
		got = rc;
		rc = prdma_wait_cq_event(channel, verbs, &ignored, spec->deadline_ns, stop_of(spec));
	}
	if (rc)
		return got ? got : rc;
	return drain(spec, got);
}
