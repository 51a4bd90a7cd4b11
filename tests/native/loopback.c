#include "loopback.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define AT(array_, number_) ((array_)[(number_) % LOOPBACK_QUEUE])

static struct loopback_end *end_of(struct ibv_context *context)
{
	return (struct loopback_end *)context;
}

/* Up to `most`, at random where a seed was given. */
static uint64_t some(struct loopback *both, uint64_t most)
{
	if (!both->random)
		return most;
	both->random ^= both->random << 13;
	both->random ^= both->random >> 7;
	both->random ^= both->random << 17;
	return both->random % (most + 1);
}

/* Only a completion of a send tells that those before it are done: `covers` is how many, 0 for a receive's. */
static void complete(struct loopback_end *end, const struct ibv_wc *wc, uint64_t covers)
{
	if (end->completed - end->polled >= (uint64_t)end->cq.cqe) {
		end->strange++;
		return;
	}
	AT(end->covers, end->completed) = covers;
	AT(end->completions, end->completed) = *wc;
	AT(end->completions, end->completed).qp_num = end->qp.qp_num;
	end->completed++;
}

static void break_qp(struct loopback_end *end)
{
	end->broken = 1;
	while (end->recv_used < end->recv_posted) {
		struct ibv_wc wc = {.wr_id = AT(end->recvs, end->recv_used++).wr_id, .status = IBV_WC_WR_FLUSH_ERR};

		complete(end, &wc, 0);
	}
}

static void *memory(uint64_t addr)
{
	return (void *)(uintptr_t)addr;
}

/* What tells that a message is whole must come last. */
static void copy(uint64_t to, uint64_t from, size_t length)
{
	uint8_t *target = memory(to);

	if (!length || !to || !from)
		return;
	memcpy(target, memory(from), length - 1);
	__atomic_store_n(target + length - 1, ((const uint8_t *)memory(from))[length - 1], __ATOMIC_RELEASE);
}

static enum ibv_wc_status arrive(struct loopback_end *peer, const struct loopback_request *request)
{
	struct ibv_recv_wr *recv = &AT(peer->recvs, peer->recv_used);
	struct ibv_sge *sge = &AT(peer->recv_sges, peer->recv_used);
	int write = request->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	struct ibv_wc wc = {.wr_id = recv->wr_id, .opcode = write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
			    .byte_len = request->sge.length};

	peer->recv_used++;
	if (!write && request->sge.length > sge->length) {
		wc.status = IBV_WC_LOC_LEN_ERR;
		complete(peer, &wc, 0);
		break_qp(peer);
		return IBV_WC_REM_INV_REQ_ERR;
	}
	if (!write)
		copy(sge->addr, request->sge.addr, request->sge.length);
	complete(peer, &wc, 0);
	return IBV_WC_SUCCESS;
}

static void add(uint64_t remote_addr, uint64_t old_at, uint64_t amount)
{
	uint64_t old = __atomic_fetch_add((uint64_t *)memory(remote_addr), amount, __ATOMIC_RELAXED);

	memcpy(memory(old_at), &old, sizeof(old));
}

static enum ibv_wc_status perform(struct loopback_end *end, const struct loopback_request *request)
{
	switch (request->wr.opcode) {
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_RDMA_WRITE:
		copy(request->wr.wr.rdma.remote_addr, request->sge.addr, request->sge.length);
		return request->wr.opcode == IBV_WR_RDMA_WRITE ? IBV_WC_SUCCESS : arrive(end->peer, request);
	case IBV_WR_RDMA_READ:
		copy(request->sge.addr, request->wr.wr.rdma.remote_addr, request->sge.length);
		return IBV_WC_SUCCESS;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		add(request->wr.wr.atomic.remote_addr, request->sge.addr, request->wr.wr.atomic.compare_add);
		return IBV_WC_SUCCESS;
	default:
		return arrive(end->peer, request);
	}
}

static int needs_receive(const struct loopback_request *request)
{
	return request->wr.opcode == IBV_WR_SEND || request->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

/* Executes the oldest request; 0 when it must wait for a receive. */
static int execute_one(struct loopback_end *end)
{
	const struct loopback_request *request = &AT(end->sends, end->executed);
	struct ibv_wc wc = {.wr_id = request->wr.wr_id, .status = IBV_WC_WR_FLUSH_ERR};

	if (!end->broken) {
		if (needs_receive(request) && end->peer->recv_used == end->peer->recv_posted && !end->peer->broken)
			return 0;
		if (end->executed == end->fail_at)
			wc.status = (enum ibv_wc_status)end->fail_status;
		else
			wc.status = end->peer->broken ? IBV_WC_RETRY_EXC_ERR : perform(end, request);
	}
	end->executed++;
	if (wc.status || request->wr.send_flags & IBV_SEND_SIGNALED)
		complete(end, &wc, end->executed);
	if (wc.status && !end->broken)
		break_qp(end);
	return 1;
}

static void execute(struct loopback_end *end)
{
	uint64_t n = some(end->both, end->posted - end->executed);

	while (n-- && execute_one(end))
		;
}

static void note(struct loopback_end *end, const struct ibv_send_wr *wr)
{
	if (end->ring && ((uintptr_t)wr < end->ring || (uintptr_t)wr >= end->ring_end))
		end->strange++;
	if (end->posted < LOOPBACK_LOG)
		end->log[end->posted] = (struct loopback_note){
			wr->wr_id, wr->num_sge ? wr->sg_list->addr : 0, wr->num_sge ? wr->sg_list->length : 0,
			wr->wr.rdma.remote_addr, wr->opcode, wr->send_flags,
		};
	AT(end->sends, end->posted) = (struct loopback_request){*wr, wr->num_sge ? *wr->sg_list : (struct ibv_sge){0}};
	end->posted++;
	if (end->posted - end->retired > end->most_in_flight)
		end->most_in_flight = end->posted - end->retired;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct loopback_end *end = end_of(qp->context);
	int rc = 0;

	pthread_mutex_lock(&end->both->lock);
	for (; wr && !rc; wr = wr->next) {
		*bad = wr;
		if (end->posted == end->refuse_at) {
			errno = (int)end->refuse_errno;
			rc = (int)end->refuse_rc;
		} else if (end->posted - end->retired >= end->send_depth) {
			end->strange++;
			rc = ENOMEM;
		} else {
			note(end, wr);
		}
	}
	execute(end);
	pthread_mutex_unlock(&end->both->lock);
	return rc;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct loopback_end *end = end_of(qp->context);
	int rc = 0;

	pthread_mutex_lock(&end->both->lock);
	for (; wr && !rc; wr = wr->next) {
		if (end->recv_posted - end->recv_used >= end->recv_depth) {
			end->strange++;
			*bad = wr;
			rc = ENOMEM;
			break;
		}
		AT(end->recvs, end->recv_posted) = *wr;
		AT(end->recv_sges, end->recv_posted) = wr->num_sge ? *wr->sg_list : (struct ibv_sge){0};
		end->recv_posted++;
	}
	if (end->broken)
		break_qp(end);
	pthread_mutex_unlock(&end->both->lock);
	return rc;
}

static int poll_cq(struct ibv_cq *cq, int room, struct ibv_wc *wc)
{
	struct loopback_end *end = end_of(cq->context);
	uint64_t there;
	int n = 0;

	pthread_mutex_lock(&end->both->lock);
	execute(end);
	execute(end->peer);
	there = some(end->both, end->completed - end->polled);
	for (; n < room && (uint64_t)n < there; n++) {
		if (end->polled == end->poll_fail_at)
			break;
		if (AT(end->covers, end->polled) > end->retired)
			end->retired = AT(end->covers, end->polled);
		wc[n] = AT(end->completions, end->polled);
		end->polled++;
	}
	if (!n && end->polled == end->poll_fail_at)
		n = -EIO;
	pthread_mutex_unlock(&end->both->lock);
	return n;
}

struct loopback *loopback_new(uint64_t seed)
{
	struct loopback *both = calloc(1, sizeof(*both));

	both->random = seed;
	pthread_mutex_init(&both->lock, NULL);
	for (int i = 0; i < 2; i++) {
		struct loopback_end *end = &both->ends[i];

		end->both = both;
		end->peer = &both->ends[1 - i];
		end->context.ops.post_send = post_send;
		end->context.ops.post_recv = post_recv;
		end->context.ops.poll_cq = poll_cq;
		end->cq.context = end->qp.context = &end->context;
		end->cq.cqe = LOOPBACK_QUEUE;
		end->qp.send_cq = end->qp.recv_cq = &end->cq;
		end->qp.qp_num = 0x100 + (uint32_t)i;
		end->send_depth = end->recv_depth = LOOPBACK_QUEUE;
		end->fail_at = end->refuse_at = end->poll_fail_at = UINT64_MAX;
	}
	return both;
}

void loopback_free(struct loopback *both)
{
	pthread_mutex_destroy(&both->lock);
	free(both);
}

uint64_t *loopback_field(struct loopback *both, int end, const char *name)
{
	struct loopback_end *one = &both->ends[end];
	const struct {
		const char *name;
		uint64_t *field;
	} fields[] = {
		{"posted", &one->posted},
		{"executed", &one->executed},
		{"recv_posted", &one->recv_posted},
		{"most_in_flight", &one->most_in_flight},
		{"send_depth", &one->send_depth},
		{"recv_depth", &one->recv_depth},
		{"fail_at", &one->fail_at},
		{"fail_status", &one->fail_status},
		{"refuse_at", &one->refuse_at},
		{"refuse_rc", &one->refuse_rc},
		{"refuse_errno", &one->refuse_errno},
		{"poll_fail_at", &one->poll_fail_at},
		{"ring", &one->ring},
		{"ring_end", &one->ring_end},
		{"strange", &one->strange},
		{"broken", &one->broken},
	};

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		if (!strcmp(fields[i].name, name))
			return fields[i].field;
	abort();
}

uint64_t loopback_pointer(struct loopback *both, int end, const char *name)
{
	struct loopback_end *one = &both->ends[end];

	if (!strcmp(name, "qp"))
		return (uintptr_t)&one->qp;
	if (!strcmp(name, "cq"))
		return (uintptr_t)&one->cq;
	return (uintptr_t)one->log;
}
