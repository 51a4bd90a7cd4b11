/* The loops under the sanitizers; what they must do in every combination is test_loops.py's. */
#include "check.h"
#include "loopback.h"
#include "loops.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define DEPTH 10
#define CYCLE 4
#define RING 12

struct end {
	struct ibv_send_wr sends[RING];
	struct ibv_recv_wr recvs[RING];
	struct prdma_lane lane;
	struct prdma_run run;
	struct prdma_histogram histogram;
	struct prdma_series series;
	uint64_t cq;
	int stop;
	char memory[64];
};

static void prepare(struct end *end, struct loopback *both, int number, uint64_t sends, uint64_t recvs)
{
	struct prdma_sge sge = {(uintptr_t)end->memory, 16, 1};
	struct prdma_sge cycle_sges[CYCLE] = {sge, sge, sge, sge};
	struct prdma_send_wr send_cycle[CYCLE];
	struct prdma_recv_wr recv_cycle[CYCLE];

	for (int i = 0; i < CYCLE; i++) {
		send_cycle[i] = (struct prdma_send_wr){.sge = (uintptr_t)&cycle_sges[i], .num_sge = 1, .opcode = IBV_WR_SEND};
		recv_cycle[i] = (struct prdma_recv_wr){.num_sge = 0};
	}
	memset(end, 0, sizeof(*end));
	prdma_build_sends(end->sends, RING, send_cycle, CYCLE, 0);
	prdma_build_recvs(end->recvs, RING, recv_cycle, CYCLE, 0);
	for (int i = 0; i < RING; i++)
		end->sends[i].num_sge = 0;
	end->lane = (struct prdma_lane){
		.qp = loopback_pointer(both, number, "qp"), .sends = (uintptr_t)end->sends, .recvs = (uintptr_t)end->recvs,
		.sends_length = RING, .recvs_length = RING, .send_target = sends, .recv_target = recvs, .next_signal = 2,
	};
	end->cq = loopback_pointer(both, number, "cq");
	end->series.interval_ns = 1000;
	end->run = (struct prdma_run){
		.lanes = (uintptr_t)&end->lane, .cqs = (uintptr_t)&end->cq, .lane_count = 1, .cq_count = 1,
		.depth = DEPTH, .batch = 3, .signal_every = 3, .recv_batch = 2, .clock_stride = 1, .patience = 16,
		.deadline_ns = in_ms(20000), .stop = (uintptr_t)&end->stop,
		.histogram = (uintptr_t)&end->histogram, .series = (uintptr_t)&end->series,
	};
	EQ(prdma_run_prepare(&end->run, RING), 0);
}

static void wait_for(struct end *end)
{
	int rc;

	while ((rc = prdma_run_wait(&end->run, 50)) == 0)
		;
	EQ(rc, 1);
}

static void play(uint64_t seed, uint64_t messages)
{
	static struct end ends[2];
	struct loopback *both = loopback_new(seed);

	for (int i = 0; i < 2; i++)
		prepare(&ends[i], both, i, messages, messages);
	for (int i = 0; i < 2; i++)
		EQ(prdma_run_start(&ends[i].run), 0);
	for (int i = 0; i < 2; i++) {
		wait_for(&ends[i]);
		EQ(ends[i].run.rc, 0);
		EQ(ends[i].lane.completed, messages);
		EQ(ends[i].lane.received, messages);
		EQ(*loopback_field(both, i, "strange"), 0);
	}
	loopback_free(both);
}

TEST(flows_both_ways_end_whatever_their_number)
{
	for (uint64_t messages = 0; messages < 40; messages++)
		play(messages % 3, messages);
}

TEST(ping_pong_answers_each_message)
{
	static struct end ends[2];
	struct loopback *both = loopback_new(0);

	for (int i = 0; i < 2; i++) {
		prepare(&ends[i], both, i, 300, 300);
		ends[i].run.kind = PRDMA_PINGPONG_SEND;
		ends[i].run.flags = i ? PRDMA_RESPONDER : 0;
		ends[i].run.batch = 1;
		ends[i].run.iterations = 300;
		EQ(prdma_run_start(&ends[i].run), 0);
	}
	for (int i = 0; i < 2; i++) {
		wait_for(&ends[i]);
		EQ(ends[i].run.rc, 0);
	}
	EQ(ends[0].histogram.count, 300);
	loopback_free(both);
}

TEST(a_failure_and_its_flushes_are_survived)
{
	static struct end end;
	struct loopback *both = loopback_new(0);

	prepare(&end, both, 0, 50, 50);
	for (int i = 0; i < RING; i++)
		end.sends[i].opcode = IBV_WR_RDMA_WRITE;
	*loopback_field(both, 0, "fail_at") = 7;
	*loopback_field(both, 0, "fail_status") = IBV_WC_REM_ACCESS_ERR;
	prdma_run_loop(&end.run);
	EQ(end.run.rc, -EIO);
	EQ(end.run.error.status, IBV_WC_REM_ACCESS_ERR);
	EQ(end.run.error_message, 7);
	loopback_free(both);
}

static volatile sig_atomic_t caught;

static void on_alarm(int number)
{
	caught = number;
}

/* The signal goes to the process: were the loop's thread not deaf, it could be the one that is interrupted. */
TEST(signals_do_not_reach_the_thread_of_a_loop)
{
	static struct end end;
	struct loopback *both = loopback_new(0);
	sigset_t all;

	signal(SIGALRM, on_alarm);
	prepare(&end, both, 0, 50, 50); /* nobody receives */
	EQ(prdma_run_start(&end.run), 0);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	kill(getpid(), SIGALRM);
	EQ(prdma_run_wait(&end.run, 50), 0);
	EQ(caught, 0);
	__atomic_store_n(&end.stop, 1, __ATOMIC_RELEASE);
	wait_for(&end);
	EQ(end.run.rc, -ECANCELED);
	loopback_free(both);
}

static int always_arrives(struct ibv_cq *cq, int room, struct ibv_wc *wc)
{
	(void)cq;
	for (int i = 0; i < room; i++)
		wc[i] = (struct ibv_wc){.wr_id = PRDMA_RECV_BIT, .opcode = IBV_WC_RECV};
	return room;
}

static int always_posts(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)qp, (void)wr, (void)bad;
	return 0;
}

TEST(a_drain_that_is_stopped_ends_though_more_and_more_arrives)
{
	static struct end end;
	struct loopback *both = loopback_new(0);

	prepare(&end, both, 1, 0, PRDMA_ENDLESS);
	both->ends[1].context.ops.poll_cq = always_arrives;
	both->ends[1].context.ops.post_recv = always_posts;
	end.run.flags = PRDMA_UNTIL_TOLD;
	end.stop = 1;
	prdma_run_loop(&end.run);
	EQ(end.run.rc, 0);
	OK(end.lane.received >= RING); /* what had arrived when it was stopped counts */
	loopback_free(both);
}

static void *ends_at_once(void *argument)
{
	return argument;
}

/* Nothing is left to read when one reading took the word of the sends and that of the end. */
TEST(an_end_is_found_though_its_word_was_read_already)
{
	static struct end end;
	pthread_t thread;

	EQ(pthread_create(&thread, NULL, ends_at_once, NULL), 0);
	end.run = (struct prdma_run){
		.running = 1, .ended = 1, .thread = (uint64_t)thread, .done_fd = eventfd(0, EFD_CLOEXEC)};
	EQ(prdma_run_wait(&end.run, 1), 1);
	EQ(end.run.running, 0);
}

TEST(the_calibrated_clock_agrees_with_the_kernels)
{
	struct prdma_clock clock = {0};
	struct timespec pause = {0, 20000000};
	int rc = prdma_clock_calibrate(&clock, 5000000);

	OK(rc == 0 || (rc == -ENOTSUP && clock.mult == 0));
	OK(prdma_clock_cost_ps(&clock) > 0);
	nanosleep(&pause, NULL);
}
