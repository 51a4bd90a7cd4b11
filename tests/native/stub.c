#include "stub.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static struct stub *stub_of(struct ibv_context *context)
{
	return (struct stub *)context; /* its first member */
}

static int refuse(struct stub *stub)
{
	errno = stub->refuse_errno;
	return stub->refuse_rc;
}

static void record(struct stub_post *post, uint64_t wr_id, const struct ibv_sge *sges, int num_sge)
{
	post->wr_id = wr_id;
	post->num_sge = num_sge;
	for (int i = 0; i < num_sge && i < STUB_SGES; i++)
		post->sges[i] = sges[i];
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct stub *stub = stub_of(qp->context);

	stub->post_calls++;
	for (; wr; wr = wr->next) {
		struct stub_post *post = &stub->sends[stub->send_count];

		if (stub->send_count == stub->refuse_at || stub->send_count == STUB_DEPTH) {
			if (!stub->refuse_silently)
				*bad = wr;
			return refuse(stub);
		}
		record(post, wr->wr_id, wr->sg_list, wr->num_sge);
		post->opcode = (int)wr->opcode;
		post->send_flags = wr->send_flags;
		post->imm_be = wr->imm_data;
		post->wr = *wr;
		stub->send_count++;
	}
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct stub *stub = stub_of(qp->context);

	stub->post_calls++;
	for (; wr; wr = wr->next) {
		if (stub->recv_count == stub->refuse_at || stub->recv_count == STUB_DEPTH) {
			if (!stub->refuse_silently)
				*bad = wr;
			return refuse(stub);
		}
		record(&stub->recvs[stub->recv_count++], wr->wr_id, wr->sg_list, wr->num_sge);
	}
	return 0;
}

static int poll_cq(struct ibv_cq *cq, int room, struct ibv_wc *wc)
{
	struct stub *stub = stub_of(cq->context);
	int there = atomic_load(&stub->queued) - stub->taken;
	int n = there < room ? there : room;

	stub->poll_calls++;
	if (stub->at_most_a_poll && n > stub->at_most_a_poll)
		n = stub->at_most_a_poll;
	if (stub->fail_poll_after >= 0) {
		if (stub->taken >= stub->fail_poll_after) {
			errno = stub->poll_errno;
			return stub->poll_rc;
		}
		if (n > stub->fail_poll_after - stub->taken)
			n = stub->fail_poll_after - stub->taken;
	}
	memcpy(wc, &stub->queue[stub->taken], (size_t)n * sizeof(*wc));
	stub->taken += n;
	return n;
}

void stub_ring(struct stub *stub)
{
	uint64_t one = 1;

	if (write(stub->channel.fd, &one, sizeof(one)) != sizeof(one))
		abort();
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	struct stub *stub = stub_of(cq->context);

	stub->armed += 1 + 100 * solicited_only;
	for (; stub->complete_when_armed; stub->complete_when_armed--)
		stub_complete(stub, 1000);
	return stub->notify_rc;
}

struct stub *stub_new(void)
{
	struct stub *stub = calloc(1, sizeof(*stub));

	stub->context.ops.post_send = post_send;
	stub->context.ops.post_recv = post_recv;
	stub->context.ops.poll_cq = poll_cq;
	stub->context.ops.req_notify_cq = req_notify_cq;
	stub->context.cmd_fd = 77;
	stub->context.async_fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	stub->pd = (struct ibv_pd){.context = &stub->context, .handle = 5};
	stub->channel = (struct ibv_comp_channel){.context = &stub->context};
	stub->channel.fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	stub->cq.context = &stub->context;
	stub->cq.channel = &stub->channel;
	stub->cq.cqe = 255;
	stub->cq.handle = 9;
	stub->qp.context = &stub->context;
	stub->qp.pd = &stub->pd;
	stub->qp.send_cq = stub->qp.recv_cq = &stub->cq;
	stub->qp.qp_num = 0x1234;
	stub->qp.qp_type = IBV_QPT_RC;
	stub->qp.handle = 3;
	stub->refuse_at = -1;
	stub->fail_poll_after = -1;
	return stub;
}

void stub_free(struct stub *stub)
{
	close(stub->channel.fd);
	close(stub->context.async_fd);
	free(stub);
}

void stub_complete_wc(struct stub *stub, const struct ibv_wc *wc)
{
	int at = atomic_load(&stub->queued);

	stub->queue[at] = *wc;
	atomic_store(&stub->queued, at + 1);
}

void stub_complete(struct stub *stub, uint64_t wr_id)
{
	struct ibv_wc wc = {.wr_id = wr_id, .qp_num = 0x1234, .byte_len = 64};

	stub_complete_wc(stub, &wc);
}

void stub_raise_async(struct stub *stub, int event_type)
{
	uint64_t one = 1;

	stub->async_event.event_type = (enum ibv_event_type)event_type;
	stub->async_event.element.qp = &stub->qp;
	if (event_type == IBV_EVENT_CQ_ERR)
		stub->async_event.element.cq = &stub->cq;
	if (event_type == IBV_EVENT_PORT_ERR)
		stub->async_event.element.port_num = 2;
	if (write(stub->context.async_fd, &one, sizeof(one)) != sizeof(one))
		abort();
}

static int get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	struct stub *stub = stub_of(channel->context);
	uint64_t count;

	if (read(channel->fd, &count, sizeof(count)) != sizeof(count))
		return -1;
	*cq = &stub->cq;
	*cq_context = NULL;
	return 0;
}

static void ack_cq_events(struct ibv_cq *cq, unsigned int nevents)
{
	stub_of(cq->context)->acked += (int)nevents;
}

static int get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	uint64_t count;

	if (read(context->async_fd, &count, sizeof(count)) != sizeof(count))
		return -1;
	*event = stub_of(context)->async_event;
	return 0;
}

/* Made useless, as destroying the element would: what comes after the acknowledgement must not look at it. */
static void ack_async_event(struct ibv_async_event *event)
{
	struct stub *stub = event->event_type == IBV_EVENT_CQ_ERR ? stub_of(event->element.cq->context) : NULL;

	if (event->event_type == IBV_EVENT_QP_FATAL)
		stub = stub_of(event->element.qp->context);
	if (stub) {
		stub->async_acked++;
		stub->qp.qp_num = 0;
		stub->cq.handle = 0;
	}
}

void stub_verbs(struct prdma_verbs *verbs)
{
	*verbs = (struct prdma_verbs){get_cq_event, ack_cq_events, get_async_event, ack_async_event};
}
