/* Looking at verbs objects through addresses that may be anything. */
#include "prdma.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Only the public head of each object is read; what follows is the provider's or the C library's. */
#define QP_HEAD (offsetof(struct ibv_qp, qp_type) + sizeof(enum ibv_qp_type))
#define CQ_HEAD (offsetof(struct ibv_cq, cqe) + sizeof(int))
#define PD_HEAD (offsetof(struct ibv_pd, handle) + sizeof(uint32_t))
#define CONTEXT_HEAD (offsetof(struct ibv_context, num_comp_vectors))
#ifndef PRDMA_SOURCES
#define PRDMA_SOURCES ""
#endif
#define CHANNEL_HEAD (offsetof(struct ibv_comp_channel, refcnt))

/* Where a sandbox forbids process_vm_readv; a bad address is EIO here. */
static int peek_by_mem(uint64_t addr, void *to, uint64_t length)
{
	int fd = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = pread(fd, to, length, (off_t)addr);
	close(fd);
	return n == (ssize_t)length ? 0 : -EFAULT;
}

int prdma_peek(uint64_t addr, void *to, uint64_t length)
{
	struct iovec local = {to, length};
	struct iovec remote = {(void *)(uintptr_t)addr, length};
	long n = syscall(SYS_process_vm_readv, getpid(), &local, 1UL, &remote, 1UL, 0UL);

	if (n == (long)length)
		return 0;
	if (n < 0 && (errno == EPERM || errno == ENOSYS))
		return peek_by_mem(addr, to, length);
	return -EFAULT;
}

static int peek_context(uint64_t addr, int32_t *cmd_fd, int32_t *async_fd)
{
	struct ibv_context context;
	int rc = prdma_peek(addr, &context, CONTEXT_HEAD);

	if (rc)
		return rc;
	*cmd_fd = context.cmd_fd;
	*async_fd = context.async_fd;
	return 0;
}

static int peek_pd(struct prdma_qp_view *view)
{
	struct ibv_pd pd;
	int rc = prdma_peek(view->pd, &pd, PD_HEAD);

	if (rc)
		return rc;
	view->pd_handle = pd.handle;
	view->pd_context = (uintptr_t)pd.context;
	return 0;
}

int prdma_qp_view(uint64_t addr, struct prdma_qp_view *view)
{
	struct ibv_qp qp;
	int rc = prdma_peek(addr, &qp, QP_HEAD);

	if (rc)
		return rc;
	*view = (struct prdma_qp_view){
		.context = (uintptr_t)qp.context,
		.pd = (uintptr_t)qp.pd,
		.send_cq = (uintptr_t)qp.send_cq,
		.recv_cq = (uintptr_t)qp.recv_cq,
		.srq = (uintptr_t)qp.srq,
		.handle = qp.handle,
		.qp_num = qp.qp_num,
		.state = qp.state,
		.qp_type = qp.qp_type,
	};
	rc = view->pd ? peek_pd(view) : 0;
	return rc ? rc : peek_context(view->context, &view->cmd_fd, &view->async_fd);
}

static int peek_channel(struct prdma_cq_view *view)
{
	struct ibv_comp_channel channel;
	int rc = prdma_peek(view->channel, &channel, CHANNEL_HEAD);

	if (rc)
		return rc;
	view->channel_context = (uintptr_t)channel.context;
	view->channel_fd = channel.fd;
	return 0;
}

int prdma_cq_view(uint64_t addr, struct prdma_cq_view *view)
{
	struct ibv_cq cq;
	int rc = prdma_peek(addr, &cq, CQ_HEAD);

	if (rc)
		return rc;
	*view = (struct prdma_cq_view){
		.context = (uintptr_t)cq.context,
		.channel = (uintptr_t)cq.channel,
		.handle = cq.handle,
		.cqe = cq.cqe,
		.channel_fd = -1,
	};
	rc = view->channel ? peek_channel(view) : 0;
	return rc ? rc : peek_context(view->context, &view->cmd_fd, &view->async_fd);
}

const char *prdma_sources(void)
{
	return PRDMA_SOURCES;
}

int prdma_abi_version(void)
{
	return PRDMA_ABI_VERSION;
}

void prdma_abi(struct prdma_abi *abi)
{
	*abi = (struct prdma_abi){
		.version = PRDMA_ABI_VERSION,
		.sizeof_sge = sizeof(struct prdma_sge),
		.sizeof_send_wr = sizeof(struct prdma_send_wr),
		.sizeof_recv_wr = sizeof(struct prdma_recv_wr),
		.sizeof_wc = sizeof(struct prdma_wc),
		.sizeof_poll = sizeof(struct prdma_poll),
		.sizeof_verbs = sizeof(struct prdma_verbs),
		.sizeof_async_event = sizeof(struct prdma_async_event),
		.sizeof_qp_view = sizeof(struct prdma_qp_view),
		.sizeof_cq_view = sizeof(struct prdma_cq_view),
		.sizeof_writer = sizeof(struct prdma_writer),
		.qp_num_offset = offsetof(struct ibv_qp, qp_num),
		.qp_type_offset = offsetof(struct ibv_qp, qp_type),
		.qp_head = QP_HEAD,
		.context_head = CONTEXT_HEAD,
	};
}
