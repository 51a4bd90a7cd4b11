/*
 * A provider of memory with two connected QPs that moves data: what one end sends, the other receives. It notes what it
 * is given, and can be slow, partial, or fail at a chosen message.
 */
#ifndef LOOPBACK_H
#define LOOPBACK_H

#include "prdma.h"

#include <pthread.h>

#define LOOPBACK_QUEUE 4096
#define LOOPBACK_LOG 65536

struct loopback_note {
	uint64_t wr_id, addr, length, remote_addr;
	uint32_t opcode, send_flags;
};

struct loopback_request {
	struct ibv_send_wr wr;
	struct ibv_sge sge;
};

/* Counters that only grow; an element is at its number modulo LOOPBACK_QUEUE. */
struct loopback_end {
	struct ibv_context context; /* first: the operations find the end by it */
	struct ibv_cq cq;
	struct ibv_qp qp;
	struct loopback *both;
	struct loopback_end *peer;
	struct loopback_request sends[LOOPBACK_QUEUE];
	struct ibv_recv_wr recvs[LOOPBACK_QUEUE];
	struct ibv_sge recv_sges[LOOPBACK_QUEUE];
	struct ibv_wc completions[LOOPBACK_QUEUE];
	uint64_t covers[LOOPBACK_QUEUE]; /* how many sends are done when this completion is polled */
	uint64_t posted, executed, retired, recv_posted, recv_used, completed, polled;
	uint64_t most_in_flight, send_depth, recv_depth;
	uint64_t fail_at, fail_status; /* number of the message that fails; UINT64_MAX: none */
	uint64_t refuse_at, refuse_rc, refuse_errno, poll_fail_at;
	uint64_t ring, ring_end; /* where requests must lie, if told */
	uint64_t broken;         /* the QP is in ERR */
	uint64_t strange;        /* what must never happen: a full queue, a request from elsewhere */
	struct loopback_note log[LOOPBACK_LOG];
};

struct loopback {
	struct loopback_end ends[2];
	pthread_mutex_t lock;
	uint64_t random; /* 0: everything at once; else the seed of how much happens at each look */
};

PRDMA_API struct loopback *loopback_new(uint64_t seed);
PRDMA_API void loopback_free(struct loopback *both);
PRDMA_API uint64_t *loopback_field(struct loopback *both, int end, const char *name);
PRDMA_API uint64_t loopback_pointer(struct loopback *both, int end, const char *name);

#endif
