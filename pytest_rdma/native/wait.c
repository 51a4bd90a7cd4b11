/* Waiting on descriptors with poll(2), in slices so that a stop is heard. */
#include "wait.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>

static int slice_ms(int64_t deadline_ns)
{
	int64_t left = deadline_ns - prdma_now_ns();

	if (left <= 0)
		return 0;
	return (int)((left < PRDMA_SLICE_NS ? left : PRDMA_SLICE_NS) + 999999) / 1000000;
}

int prdma_poll_fd(int fd, short events, int64_t deadline_ns)
{
	struct pollfd item = {.fd = fd, .events = events};
	int rc = poll(&item, 1, slice_ms(deadline_ns));

	if (rc < 0)
		return errno == EINTR ? 0 : -errno;
	if (rc && (item.revents & POLLNVAL))
		return -EBADF;
	return rc;
}

int prdma_wait_fd(int fd, int64_t deadline_ns, prdma_stop *stop)
{
	int rc;

	do {
		rc = prdma_poll_fd(fd, POLLIN, deadline_ns);
		if (rc)
			return rc;
		if (prdma_stopped(stop))
			return -ECANCELED;
	} while (prdma_now_ns() < deadline_ns);
	return 0;
}

int prdma_set_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return -errno;
	return 0;
}

/* What a failed get of an event means: 0 to wait again, as another thread may have taken it, else the error. */
static int retry(void)
{
	if (errno == EAGAIN || errno == EINTR)
		return 0;
	return errno ? -errno : -EIO;
}

int prdma_wait_cq_event(struct ibv_comp_channel *channel, const struct prdma_verbs *verbs, uint64_t *cq,
			int64_t deadline_ns, prdma_stop *stop)
{
	struct ibv_cq *source;
	void *cq_context;
	int rc = prdma_set_nonblocking(channel->fd);

	while (!rc) {
		rc = prdma_wait_fd(channel->fd, deadline_ns, stop);
		if (rc <= 0)
			return rc;
		errno = 0;
		if (!verbs->get_cq_event(channel, &source, &cq_context)) {
			*cq = (uintptr_t)source;
			verbs->ack_cq_events(source, 1);
			return 1;
		}
		rc = retry();
	}
	return rc;
}

/* The element must be looked at before the acknowledgement: after it, it may be destroyed. */
static void describe(struct prdma_async_event *out, const struct ibv_async_event *event)
{
	*out = (struct prdma_async_event){.event_type = event->event_type, .element = (uintptr_t)event->element.qp};
	switch (event->event_type) {
	case IBV_EVENT_CQ_ERR:
		out->number = event->element.cq->handle;
		break;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		out->number = event->element.srq->handle;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
		out->number = event->element.qp->qp_num;
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_SM_CHANGE:
	case IBV_EVENT_CLIENT_REREGISTER:
	case IBV_EVENT_GID_CHANGE:
		out->number = (uint32_t)event->element.port_num;
		out->element = 0;
		break;
	default:
		out->element = 0;
	}
}

int prdma_wait_async_event(struct ibv_context *context, const struct prdma_verbs *verbs, struct prdma_async_event *out,
			   int64_t deadline_ns, prdma_stop *stop)
{
	struct ibv_async_event event;
	int rc = prdma_set_nonblocking(context->async_fd);

	while (!rc) {
		rc = prdma_wait_fd(context->async_fd, deadline_ns, stop);
		if (rc <= 0)
			return rc;
		errno = 0;
		if (!verbs->get_async_event(context, &event)) {
			describe(out, &event);
			verbs->ack_async_event(&event);
			return 1;
		}
		rc = retry();
	}
	return rc;
}
