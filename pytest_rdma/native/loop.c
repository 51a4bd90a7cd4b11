/* A run from its rings to its end: building them, the thread, the wait for it. */
#include "run.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

void prdma_build_sends(void *ring, uint32_t length, const struct prdma_send_wr *cycle, uint32_t n, uint32_t lane)
{
	struct ibv_send_wr *wrs = ring;

	for (uint32_t i = 0; i < length; i++) {
		prdma_set_send(&wrs[i], &cycle[i % n]);
		wrs[i].wr_id = (uint64_t)lane << PRDMA_LANE_SHIFT | i;
		wrs[i].next = &wrs[i + 1 < length ? i + 1 : 0];
	}
}

void prdma_build_recvs(void *ring, uint32_t length, const struct prdma_recv_wr *cycle, uint32_t n, uint32_t lane)
{
	struct ibv_recv_wr *wrs = ring;

	for (uint32_t i = 0; i < length; i++) {
		prdma_set_recv(&wrs[i], &cycle[i % n]);
		wrs[i].wr_id = PRDMA_RECV_BIT | (uint64_t)lane << PRDMA_LANE_SHIFT | i;
		wrs[i].next = &wrs[i + 1 < length ? i + 1 : 0];
	}
}

int prdma_run_prepare(struct prdma_run *run, uint32_t depth)
{
	struct prdma_lane *lane = prdma_lanes(run);
	int rc = 0;

	errno = 0;
	prdma_now(run);
	for (uint32_t i = 0; i < run->lane_count && !rc; i++, lane++) {
		uint64_t left = lane->recv_target - lane->recv_posted;
		uint64_t outstanding = lane->recv_posted - lane->received;
		uint64_t n = outstanding < depth ? depth - outstanding : 0;

		if (n > left)
			n = left;
		if (n)
			rc = prdma_repost(run, lane, (uint32_t)n);
	}
	prdma_mark_lanes(run);
	return rc;
}

static void begin(struct prdma_run *run)
{
	int64_t left = run->deadline_ns - prdma_now_ns();
	uint64_t now = prdma_now(run);

	errno = 0;
	run->deadline_at = now + prdma_ns_to_ticks(&run->clock, left > 0 ? (uint64_t)left : 0);
	if (run->duration_ns)
		run->end_at = now + prdma_ns_to_ticks(&run->clock, (uint64_t)run->duration_ns);
	if (prdma_lanes(run)->send_target)
		run->start = run->boundary = run->last = now;
	run->next_post = now;
}

static void finish(struct prdma_run *run)
{
	uint64_t now = prdma_now(run);
	uint64_t until = run->sent_at ? run->sent_at : run->flags & PRDMA_UNTIL_TOLD ? run->last : now;

	prdma_mark_lanes(run);
	if (run->failed)
		prdma_settle(run);
	prdma_series_end(run);
	run->elapsed_ns = (int64_t)prdma_ticks_to_ns(&run->clock, run->start ? until - run->start : 0);
	run->post_ns = (int64_t)prdma_ticks_to_ns(&run->clock, (uint64_t)run->post_ns);
	run->poll_ns = (int64_t)prdma_ticks_to_ns(&run->clock, (uint64_t)run->poll_ns);
	run->cpu = sched_getcpu();
}

void prdma_run_loop(struct prdma_run *run)
{
	begin(run);
	if (run->kind == PRDMA_FLOW)
		prdma_flow(run);
	else
		prdma_pingpong(run);
	finish(run);
}

void prdma_run_tell(const struct prdma_run *run)
{
	uint64_t one = 1;

	while (run->running && write(run->done_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

static void *run_thread(void *argument)
{
	struct prdma_run *run = argument;

	prdma_run_loop(run);
	__atomic_store_n(&run->ended, 1, __ATOMIC_RELEASE);
	prdma_run_tell(run);
	return NULL;
}

/* Signals are blocked before the thread is made, which inherits that: none ever reaches it. */
int prdma_run_start(struct prdma_run *run)
{
	sigset_t all, before;
	pthread_t thread;
	int rc;

	run->done_fd = eventfd(0, EFD_CLOEXEC);
	if (run->done_fd < 0)
		return -errno;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	run->running = 1;
	rc = -pthread_create(&thread, NULL, run_thread, run);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc) {
		run->running = 0;
		close(run->done_fd);
		return rc;
	}
	run->thread = (uint64_t)thread;
	return 0;
}

int prdma_run_wait(struct prdma_run *run, int timeout_ms)
{
	uint64_t told;
	int rc;

	if (!run->running)
		return 1;
	rc = prdma_wait_fd(run->done_fd, prdma_now_ns() + timeout_ms * INT64_C(1000000), NULL);
	if (rc > 0 && read(run->done_fd, &told, sizeof(told)) < 0)
		rc = -errno;
	if (rc < 0)
		return rc;
	/* After the read, which may take the word of the end along with an earlier one. */
	if (!__atomic_load_n(&run->ended, __ATOMIC_ACQUIRE))
		return 0;
	pthread_join((pthread_t)run->thread, NULL);
	close(run->done_fd);
	run->running = 0;
	return 1;
}

void prdma_loops_abi(struct prdma_loops_abi *abi)
{
	*abi = (struct prdma_loops_abi){
		.sizeof_clock = sizeof(struct prdma_clock),
		.sizeof_histogram = sizeof(struct prdma_histogram),
		.sizeof_series = sizeof(struct prdma_series),
		.sizeof_lane = sizeof(struct prdma_lane),
		.sizeof_run = sizeof(struct prdma_run),
		.sizeof_ibv_send_wr = sizeof(struct ibv_send_wr),
		.sizeof_ibv_recv_wr = sizeof(struct ibv_recv_wr),
	};
}
