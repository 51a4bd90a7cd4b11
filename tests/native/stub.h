/*
 * A provider that is only memory: it records what is posted, in order, and hands out the completions that a test queues.
 * One producer may queue completions while one consumer polls.
 */
#ifndef STUB_H
#define STUB_H

#include "prdma.h"

#define STUB_DEPTH 1024
#define STUB_SGES 4

struct stub_post {
	uint64_t wr_id;
	int num_sge;
	int opcode;
	unsigned int send_flags;
	uint32_t imm_be; /* as the provider sees it */
	struct ibv_sge sges[STUB_SGES];
	struct ibv_send_wr wr;
};

struct stub {
	struct ibv_context context;
	struct ibv_pd pd;
	struct ibv_comp_channel channel;
	struct ibv_cq cq;
	struct ibv_qp qp;

	struct stub_post sends[STUB_DEPTH], recvs[STUB_DEPTH];
	int send_count, recv_count, post_calls;
	int refuse_at; /* the request of this number is refused; -1: none */
	int refuse_rc, refuse_errno, refuse_silently;

	struct ibv_wc queue[STUB_DEPTH];
	_Atomic int queued;
	int taken, poll_calls;
	int at_most_a_poll; /* 0: no limit */
	int fail_poll_after; /* completions that come before polling fails; -1: never */
	int poll_rc, poll_errno;
	int complete_when_armed; /* completions that slip in while the CQ is being armed */
	int armed, notify_rc, acked;

	struct ibv_async_event async_event;
	int async_acked;
};

PRDMA_API struct stub *stub_new(void);
PRDMA_API void stub_free(struct stub *stub);
PRDMA_API void stub_complete(struct stub *stub, uint64_t wr_id);
PRDMA_API void stub_complete_wc(struct stub *stub, const struct ibv_wc *wc);
PRDMA_API void stub_ring(struct stub *stub); /* a completion event without a completion */
PRDMA_API void stub_raise_async(struct stub *stub, int event_type);
PRDMA_API void stub_verbs(struct prdma_verbs *verbs);

#endif
