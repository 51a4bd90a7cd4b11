/* What both loops are made of: posting from the rings, taking completions, time. */
#ifndef PRDMA_RUN_H
#define PRDMA_RUN_H

#include "clock.h"
#include "post.h"
#include "wait.h"

#define PRDMA_LOOKS 64 /* polls between two looks at the clock; a driver may take milliseconds for one */

static inline struct prdma_lane *prdma_lanes(const struct prdma_run *run)
{
	return (struct prdma_lane *)(uintptr_t)run->lanes;
}

static inline struct ibv_qp *prdma_qp(const struct prdma_lane *lane)
{
	return (struct ibv_qp *)(uintptr_t)lane->qp;
}

static inline struct ibv_send_wr *prdma_sends(const struct prdma_lane *lane)
{
	return (struct ibv_send_wr *)(uintptr_t)lane->sends;
}

static inline uint64_t prdma_in_flight(const struct prdma_lane *lane)
{
	return lane->posted - lane->completed;
}

/* How many the next list may hold: a whole batch or what is left of the run, 0 while that has no room. */
static inline uint32_t prdma_room(const struct prdma_run *run, const struct prdma_lane *lane)
{
	uint64_t left = lane->send_target - lane->posted;
	uint32_t want = left < run->batch ? (uint32_t)left : run->batch;

	return prdma_in_flight(lane) + want <= run->depth ? want : 0;
}

/* Posts the next `n` of the lane's ring as one list: 0, or what is in run->rc, too. */
int prdma_post_list(struct prdma_run *run, struct prdma_lane *lane, uint32_t n);
/* Posts lists while there is room, up to the one in which the next completes; whether more can follow, prdma_room says. */
int prdma_post_lists(struct prdma_run *run, struct prdma_lane *lane);
/* Posts `n` receives again. */
int prdma_repost(struct prdma_run *run, struct prdma_lane *lane, uint32_t n);
/* Takes what completed: how many, or an error, which is in run->rc, too. */
int prdma_reap(struct prdma_run *run);
/* In every loop, once a look: notices a stop, and now and then the deadline. 0, or what is in run->rc. */
int prdma_look(struct prdma_run *run, int idle);
/* Reads the clock. */
uint64_t prdma_now(struct prdma_run *run);
/* After a bad completion: what else comes, as the cause may lie behind the flushes that it made. */
void prdma_settle(struct prdma_run *run);
/* Notes which counters have moved by `now`; exact to one look. */
void prdma_mark_lanes(struct prdma_run *run);
void prdma_series_end(struct prdma_run *run);

/* Wakes who waits for the run, be it done or only done with sending. */
void prdma_run_tell(const struct prdma_run *run);

void prdma_flow(struct prdma_run *run);
void prdma_pingpong(struct prdma_run *run);

#endif
