/* Runs the flow over a provider that does the least a provider can, for loop_cost.py. */
#include "loops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUEUE 512

static struct ibv_context context;
static struct ibv_qp qp = {.context = &context};
static struct ibv_cq cq = {.context = &context};
static struct ibv_wc queue[QUEUE];
static unsigned int made, polled;

/* Walks the list and writes one completion, 48 bytes, for each request that asks for it. */
static int post_send(struct ibv_qp *to, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)to;
	(void)bad;
	for (; wr; wr = wr->next)
		if (wr->send_flags & IBV_SEND_SIGNALED)
			queue[made++ % QUEUE] = (struct ibv_wc){.wr_id = wr->wr_id, .opcode = IBV_WC_RDMA_WRITE};
	return 0;
}

static int poll_cq(struct ibv_cq *from, int room, struct ibv_wc *wc)
{
	int n = 0;

	(void)from;
	for (; n < room && polled != made; n++)
		wc[n] = queue[polled++ % QUEUE];
	return n;
}

/* The provider's own part: the same lists, posted and polled with nothing around. */
static void provider_alone(struct ibv_send_wr *ring, uint64_t messages, unsigned int batch, unsigned int signal_every)
{
	struct ibv_send_wr *bad;
	struct ibv_wc wc[32];

	ring[batch - 1].next = NULL;
	for (uint64_t at = batch, signal = signal_every; at <= messages; at += batch) {
		ring[batch - 1].send_flags = at >= signal ? IBV_SEND_SIGNALED : 0;
		post_send(&qp, ring, &bad);
		if (at >= signal) {
			poll_cq(&cq, 32, wc);
			signal += signal_every;
		}
	}
}

int main(int argc, char **argv)
{
	static struct prdma_series series = {.interval_ns = 1000000};
	static struct ibv_send_wr ring[128];
	struct prdma_send_wr request = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = atoi(argv[4]) == 1 ? IBV_SEND_SIGNALED : 0};
	uint64_t messages = strtoull(argv[2], NULL, 10), cqs = (uintptr_t)&cq;
	unsigned int batch = (unsigned int)atoi(argv[3]), signal_every = (unsigned int)atoi(argv[4]);
	struct prdma_lane lane = {.qp = (uintptr_t)&qp, .sends = (uintptr_t)ring, .sends_length = 128,
				  .send_target = messages, .next_signal = signal_every - 1};
	struct prdma_run run = {.lanes = (uintptr_t)&lane, .cqs = (uintptr_t)&cqs, .lane_count = 1, .cq_count = 1,
				.depth = 128, .batch = batch, .signal_every = signal_every, .clock_stride = 1, .patience = 1024,
				.deadline_ns = INT64_C(1) << 60};

	if (argc != 5)
		return 2;
	context.ops.post_send = post_send;
	context.ops.poll_cq = poll_cq;
	/* any value: what a reading of the TSC says does not matter here, only that it is one */
	run.clock.mult = strchr(argv[1], 'r') ? 0 : UINT64_C(1) << 31;
	run.series = strchr(argv[1], 't') ? (uintptr_t)&series : 0;
	run.flags = strchr(argv[1], 's') ? PRDMA_SPLIT : 0;
	prdma_build_sends(ring, 128, &request, 1, 0);
	if (strchr(argv[1], 'p'))
		provider_alone(ring, messages, batch, signal_every);
	else
		prdma_run_loop(&run);
	if (run.rc || lane.completed != (strchr(argv[1], 'p') ? 0 : messages))
		fprintf(stderr, "ended with %d after %lu of %lu\n", run.rc, (unsigned long)lane.completed,
			(unsigned long)messages);
	return run.rc != 0;
}
