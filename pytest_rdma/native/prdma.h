/*
 * The native helper of pytest-rdma: the data path of the verbs, waits, and the agent's stream.
 *
 * Called with ctypes, so every structure has fixed-width fields and belongs to the caller. Functions return a count or
 * a negative errno. Nothing here allocates, logs or keeps state. Every wait ends at `deadline_ns` (CLOCK_MONOTONIC; a
 * time that has passed means: look once) or when `*stop` is not zero (`stop` may be NULL).
 * It is linked to nothing of rdma-core: providers are called through the context's operations, and the few functions
 * of libibverbs come in by `struct prdma_verbs`.
 */
#ifndef PRDMA_H
#define PRDMA_H

#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define PRDMA_ABI_VERSION 1
#define PRDMA_API __attribute__((visibility("default")))

typedef const int prdma_stop; /* read atomically */

struct prdma_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

struct prdma_send_wr {
	uint64_t wr_id;
	uint64_t sge; /* address of num_sge prdma_sge */
	int32_t num_sge;
	uint32_t opcode;
	uint32_t send_flags;
	uint32_t imm; /* host order */
	uint64_t remote_addr;
	uint64_t compare_add;
	uint64_t swap;
	uint32_t rkey; /* for BIND_MW the window's new key */
	uint32_t invalidate_rkey;
	uint64_t ah;
	uint32_t remote_qpn;
	uint32_t remote_qkey;
	uint64_t mw;
	uint64_t mw_mr;
	uint64_t mw_addr;
	uint64_t mw_length;
	uint64_t mw_access;
};

struct prdma_recv_wr {
	uint64_t wr_id;
	uint64_t sge;
	int32_t num_sge;
	uint32_t reserved;
};

struct prdma_wc {
	uint64_t wr_id;
	uint32_t status;
	uint32_t opcode;
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t imm; /* host order, or the key that was invalidated; 0 where wc_flags has neither */
	uint32_t qp_num;
	uint32_t src_qp;
	uint32_t wc_flags;
	uint16_t pkey_index;
	uint16_t slid;
	uint8_t sl;
	uint8_t dlid_path_bits;
	uint16_t reserved;
};

/* The functions of the libibverbs that this process has loaded. */
struct prdma_verbs {
	int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context);
	void (*ack_cq_events)(struct ibv_cq *cq, unsigned int nevents);
	int (*get_async_event)(struct ibv_context *context, struct ibv_async_event *event);
	void (*ack_async_event)(struct ibv_async_event *event);
};

struct prdma_async_event {
	uint32_t event_type;
	uint32_t number; /* QP number, port, or handle of the CQ or SRQ; 0 for the device */
	uint64_t element;
};

/* How to poll: wait until `want` completions came, take up to `max` if they are there. */
struct prdma_poll {
	uint64_t cq;
	uint64_t wc; /* address of `max` prdma_wc */
	int32_t max;
	int32_t want;
	int64_t deadline_ns;
	uint64_t stop; /* address of an int, or 0 */
};

struct prdma_qp_view {
	uint64_t context, pd, send_cq, recv_cq, srq;
	uint32_t handle, qp_num, state, qp_type;
	int32_t cmd_fd, async_fd;
	uint32_t pd_handle, reserved;
	uint64_t pd_context;
};

struct prdma_cq_view {
	uint64_t context, channel, channel_context;
	uint32_t handle;
	int32_t cqe;
	int32_t cmd_fd, async_fd, channel_fd;
	uint32_t reserved;
};

#define PRDMA_SLOTS 64

/* One call that the agent is in; id 0 means free. */
struct prdma_slot {
	_Atomic uint64_t id;
	_Atomic int64_t start_ns;
};

struct prdma_writer {
	int32_t fd;
	_Atomic int32_t broken; /* a frame was cut or the reader is gone: nothing can follow */
	_Atomic int32_t lock;
	_Atomic int32_t stop; /* asks the heartbeat to end */
	int32_t interval_ms;
	int32_t orphan_s; /* when the reader is gone the process has this long to end by itself; 0 for ever */
	int32_t beating;
	uint64_t thread;
	uint64_t beats;
	struct prdma_slot slots[PRDMA_SLOTS];
};

/* Sizes and offsets that the Python face checks its mirrors against. */
struct prdma_abi {
	uint32_t version;
	uint32_t sizeof_sge, sizeof_send_wr, sizeof_recv_wr, sizeof_wc, sizeof_poll, sizeof_verbs;
	uint32_t sizeof_async_event, sizeof_qp_view, sizeof_cq_view, sizeof_writer;
	uint32_t qp_num_offset, qp_type_offset, qp_head, context_head;
};

PRDMA_API const char *prdma_sources(void); /* the hash of what this was built from */
PRDMA_API int prdma_abi_version(void);
PRDMA_API void prdma_abi(struct prdma_abi *abi);

/* Posts in order. `*bad_index` is the first request that was not posted, `n` if all were. */
PRDMA_API int prdma_post_send(struct ibv_qp *qp, const struct prdma_send_wr *wrs, int n, int *bad_index);
PRDMA_API int prdma_post_recv(struct ibv_qp *qp, const struct prdma_recv_wr *wrs, int n, int *bad_index);

/*
 * Both return how many completions are in `wc`: fewer than `want` at the deadline, on a stop or when the provider failed
 * after some had come, as what was taken from the CQ is never lost. With none: 0, -ECANCELED, or the provider's error.
 */
PRDMA_API int prdma_poll(const struct prdma_poll *spec);
PRDMA_API int prdma_poll_events(const struct prdma_poll *spec, struct ibv_comp_channel *channel,
				const struct prdma_verbs *verbs, int solicited_only);

PRDMA_API int prdma_req_notify(struct ibv_cq *cq, int solicited_only);
PRDMA_API int prdma_set_nonblocking(int fd);

/* 1 when it came, 0 at the deadline. Events are acknowledged before these return. */
PRDMA_API int prdma_wait_fd(int fd, int64_t deadline_ns, prdma_stop *stop);
PRDMA_API int prdma_wait_cq_event(struct ibv_comp_channel *channel, const struct prdma_verbs *verbs, uint64_t *cq,
				  int64_t deadline_ns, prdma_stop *stop);
PRDMA_API int prdma_wait_async_event(struct ibv_context *context, const struct prdma_verbs *verbs,
				     struct prdma_async_event *out, int64_t deadline_ns, prdma_stop *stop);

/*
 * The pattern: byte `o` is byte `o % 8`, least significant first, of mix(mix(seed) + o / 8), where mix is splitmix64's
 * step. `start` is the pattern's offset at `addr`. verify and find_not return 1 and set `*first_bad`, or 0.
 */
PRDMA_API void prdma_fill(uint8_t *addr, uint64_t length, uint64_t seed, uint64_t start);
PRDMA_API int prdma_verify(const uint8_t *addr, uint64_t length, uint64_t seed, uint64_t start, uint64_t *first_bad);
PRDMA_API int prdma_find_not(const uint8_t *addr, uint64_t length, uint8_t byte, uint64_t *first_bad);

/* Reads memory of this process; a bad address is -EFAULT, never a signal. */
PRDMA_API int prdma_peek(uint64_t addr, void *to, uint64_t length);
PRDMA_API int prdma_qp_view(uint64_t qp, struct prdma_qp_view *view);
PRDMA_API int prdma_cq_view(uint64_t cq, struct prdma_cq_view *view);

/* -ETIMEDOUT when nothing was written by then; -EPIPE when the reader is gone or the stream was cut. No SIGPIPE. */
PRDMA_API void prdma_writer_init(struct prdma_writer *writer, int fd);
PRDMA_API int prdma_frame_write(struct prdma_writer *writer, const void *payload, uint32_t length, int64_t deadline_ns);
PRDMA_API int prdma_heartbeat_start(struct prdma_writer *writer, int interval_ms);
PRDMA_API int prdma_heartbeat_stop(struct prdma_writer *writer);
PRDMA_API int prdma_call_begin(struct prdma_writer *writer, uint64_t id);
PRDMA_API void prdma_call_end(struct prdma_writer *writer, int index);

#endif
