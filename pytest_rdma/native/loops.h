/*
 * The traffic loops: a flow (requests kept in flight, receives posted again) and a ping-pong, over prebuilt requests.
 *
 * A run is one structure of the caller's with all that it points to. Its loop has a thread of its own with every signal
 * blocked; what came of it may be read when prdma_run_wait has returned 1.
 */
#ifndef PRDMA_LOOPS_H
#define PRDMA_LOOPS_H

#include "prdma.h"

#define PRDMA_BUCKETS 2112
#define PRDMA_INTERVALS 256
#define PRDMA_ENDLESS UINT64_MAX

/* Work request numbers of the loops: the lane from bit 32 on, the place in its ring below. */
#define PRDMA_RECV_BIT (UINT64_C(1) << 62)
#define PRDMA_LANE_SHIFT 32

enum prdma_kind { PRDMA_FLOW, PRDMA_PINGPONG_SEND, PRDMA_PINGPONG_WRITE, PRDMA_ROUND_TRIP };

#define PRDMA_SPLIT 1u     /* measure how long posting and polling take */
#define PRDMA_RESPONDER 2u /* of a ping-pong: answers */
#define PRDMA_UNTIL_TOLD 4u /* a stop is the regular end */

struct prdma_clock {
	uint64_t mult; /* nanoseconds a tick of the TSC, times 2^32; 0: CLOCK_MONOTONIC_RAW */
};

/* Log-linear: 64 buckets an octave, exact below 64 ns, the last one also for all above 2^38 ns. */
struct prdma_histogram {
	uint64_t count, sum_ns, min_ns, max_ns;
	uint64_t buckets[PRDMA_BUCKETS];
};

/* Messages by interval. When all are used, neighbours are merged and the interval doubles. */
struct prdma_series {
	uint64_t interval_ns;
	uint32_t used, reserved;
	uint64_t counts[PRDMA_INTERVALS];
};

/* A counter of a lane as it was at the last look, and when it was first seen at that: ticks, 0 for never. */
struct prdma_mark {
	uint64_t seen, at;
};

/* One QP's part of a run. */
struct prdma_lane {
	uint64_t qp;
	uint64_t sends; /* a ring of sends_length ibv_send_wr, at least the depth: prdma_build_sends */
	uint64_t recvs; /* a ring of recvs_length ibv_recv_wr: prdma_build_recvs */
	uint32_t sends_length, recvs_length;
	uint64_t send_target; /* how many to post in all; PRDMA_ENDLESS: until the time is up */
	uint64_t recv_target; /* PRDMA_ENDLESS: until told */
	uint32_t send_slot;   /* of the next to post */
	uint32_t done_slot;   /* of the oldest in flight */
	uint32_t recv_slot;
	uint32_t recv_due;    /* consumed and not posted again */
	uint64_t posted, completed, signaled;
	uint64_t next_signal; /* number of the next request that completes */
	uint64_t recv_taken; /* of recv_posted, how many an earlier run had posted */
	uint64_t recv_posted, received;
	struct prdma_mark post, completion, recv_post, arrival;
};

struct prdma_run {
	uint64_t lanes; /* lane_count prdma_lane */
	uint64_t cqs;   /* cq_count addresses of ibv_cq */
	uint32_t lane_count, cq_count;
	uint32_t kind, flags;
	uint32_t depth, batch, signal_every, recv_batch;
	uint64_t iterations;  /* of a ping-pong; PRDMA_ENDLESS: until the time is up or told */
	int64_t duration_ns;  /* 0: as many as the targets say */
	uint64_t gap_ps;      /* least time between two messages, 0: none */
	int64_t deadline_ns;  /* CLOCK_MONOTONIC */
	uint64_t stop;        /* address of an int, or 0 */
	struct prdma_clock clock;
	uint64_t histogram, series; /* addresses, or 0 */
	uint64_t tail_source, tail_target; /* of a ping-pong by Write: where the message's last bytes are */
	uint32_t tail_bytes;
	uint32_t clock_stride; /* polls with completions a reading of the clock */

	int32_t rc; /* 0, -ECANCELED, -ETIMEDOUT, -EIO for a bad completion (`error`), or what the driver said */
	int32_t cpu;
	struct prdma_wc error; /* the first completion with a bad status that is not a flush, if any came */
	uint64_t error_message; /* its number among the lane's messages, PRDMA_ENDLESS: not known */
	int64_t elapsed_ns; /* from the first post to the last completion of a send; of arrivals where nothing is sent */
	uint64_t received_bytes, post_calls, polls, empty_polls;
	int64_t post_ns, poll_ns;

	uint64_t start, now, last, end_at, deadline_at, next_post, boundary; /* ticks */
	uint64_t pending; /* messages not yet in the series */
	uint32_t look, idle, failed;
	uint32_t patience; /* idle looks before the processor is offered to others */
	uint64_t sent_at, thread;
	int32_t done_fd, running;
	int32_t sent, ended; /* all sends have completed; so has the run */
	uint64_t told; /* set from outside, of a run until told: one more than what arrives in all; 0: not told yet */
};

struct prdma_loops_abi {
	uint32_t sizeof_clock, sizeof_histogram, sizeof_series, sizeof_lane, sizeof_run;
	uint32_t sizeof_ibv_send_wr, sizeof_ibv_recv_wr;
};

PRDMA_API void prdma_loops_abi(struct prdma_loops_abi *abi);

/* Measures the TSC, for that long, against CLOCK_MONOTONIC_RAW; -ENOTSUP where there is none. */
PRDMA_API int prdma_clock_calibrate(struct prdma_clock *clock, int64_t for_ns);
/* What a reading costs, in picoseconds. */
PRDMA_API uint64_t prdma_clock_cost_ps(const struct prdma_clock *clock);

/* How long ago, in nanoseconds, the clock showed that. */
PRDMA_API int64_t prdma_clock_ago_ns(const struct prdma_clock *clock, uint64_t ticks);

PRDMA_API void prdma_histogram_add(struct prdma_histogram *histogram, uint64_t ns);
/* The middle of the bucket. */
PRDMA_API uint64_t prdma_histogram_value(uint32_t bucket);

/* Fills a ring of `length` from a cycle of `n` requests, linked in a circle and numbered for the lane. */
PRDMA_API void prdma_build_sends(void *ring, uint32_t length, const struct prdma_send_wr *cycle, uint32_t n,
				 uint32_t lane);
PRDMA_API void prdma_build_recvs(void *ring, uint32_t length, const struct prdma_recv_wr *cycle, uint32_t n,
				 uint32_t lane);

/* Posts receives until each lane has `depth` of them, or as many as it will take. */
PRDMA_API int prdma_run_prepare(struct prdma_run *run, uint32_t depth);
PRDMA_API int prdma_run_start(struct prdma_run *run);
/* 1 when the loop has ended and its thread is gone; 0 when the time is up, or all was sent and receives go on. */
PRDMA_API int prdma_run_wait(struct prdma_run *run, int timeout_ms);
/* The loop itself, in the caller's thread. */
PRDMA_API void prdma_run_loop(struct prdma_run *run);

#endif
