/* Posting: our work requests become a linked list of the provider's on the stack, a chunk at a time. */
#include "post.h"

#include <errno.h>

#define CHUNK 64

_Static_assert(sizeof(struct prdma_sge) == sizeof(struct ibv_sge), "prdma_sge is passed on as ibv_sge");
_Static_assert(offsetof(struct prdma_sge, length) == offsetof(struct ibv_sge, length), "layout of ibv_sge");
_Static_assert(offsetof(struct prdma_sge, lkey) == offsetof(struct ibv_sge, lkey), "layout of ibv_sge");

static void *pointer(uint64_t address)
{
	return (void *)(uintptr_t)address;
}

int prdma_normalise(int rc)
{
	if (rc > 0)
		return -rc;
	if (rc == -1 && errno)
		return -errno;
	return rc;
}

static void set_operands(struct ibv_send_wr *to, const struct prdma_send_wr *wr)
{
	switch (to->opcode) {
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		to->wr.atomic.remote_addr = wr->remote_addr;
		to->wr.atomic.compare_add = wr->compare_add;
		to->wr.atomic.swap = wr->swap;
		to->wr.atomic.rkey = wr->rkey;
		break;
	case IBV_WR_BIND_MW:
		to->bind_mw.mw = pointer(wr->mw);
		to->bind_mw.rkey = wr->rkey;
		to->bind_mw.bind_info.mr = pointer(wr->mw_mr);
		to->bind_mw.bind_info.addr = wr->mw_addr;
		to->bind_mw.bind_info.length = wr->mw_length;
		to->bind_mw.bind_info.mw_access_flags = (unsigned int)wr->mw_access;
		break;
	default:
		to->wr.rdma.remote_addr = wr->remote_addr;
		to->wr.rdma.rkey = wr->rkey;
	}
	if (wr->ah) {
		to->wr.ud.ah = pointer(wr->ah);
		to->wr.ud.remote_qpn = wr->remote_qpn;
		to->wr.ud.remote_qkey = wr->remote_qkey;
	}
}

static int invalidates(uint32_t opcode)
{
	return opcode == IBV_WR_LOCAL_INV || opcode == IBV_WR_SEND_WITH_INV;
}

void prdma_set_send(struct ibv_send_wr *to, const struct prdma_send_wr *wr)
{
	*to = (struct ibv_send_wr){
		.wr_id = wr->wr_id,
		.next = to + 1,
		.sg_list = pointer(wr->sge),
		.num_sge = wr->num_sge,
		.opcode = (enum ibv_wr_opcode)wr->opcode,
		.send_flags = wr->send_flags,
	};
	if (invalidates(wr->opcode))
		to->invalidate_rkey = wr->invalidate_rkey;
	else
		to->imm_data = htobe32(wr->imm);
	set_operands(to, wr);
}

void prdma_set_recv(struct ibv_recv_wr *to, const struct prdma_recv_wr *wr)
{
	*to = (struct ibv_recv_wr){
		.wr_id = wr->wr_id,
		.next = to + 1,
		.sg_list = pointer(wr->sge),
		.num_sge = wr->num_sge,
	};
}

/* Which of the n requests of `size` bytes `bad` points to; the first when the provider did not say. */
static int index_of(const void *bad, const void *first, size_t size, int n)
{
	uintptr_t offset = (uintptr_t)bad - (uintptr_t)first;

	return bad && offset < (uintptr_t)n * size ? (int)(offset / size) : 0;
}

static int post_send_chunk(struct ibv_qp *qp, const struct prdma_send_wr *wrs, int n, int *bad_index)
{
	struct ibv_send_wr list[CHUNK], *bad = NULL;
	int rc;

	for (int i = 0; i < n; i++)
		prdma_set_send(&list[i], &wrs[i]);
	list[n - 1].next = NULL;
	errno = 0;
	rc = prdma_normalise(qp->context->ops.post_send(qp, list, &bad));
	*bad_index = rc ? index_of(bad, list, sizeof(list[0]), n) : n;
	return rc;
}

static int post_recv_chunk(struct ibv_qp *qp, const struct prdma_recv_wr *wrs, int n, int *bad_index)
{
	struct ibv_recv_wr list[CHUNK], *bad = NULL;
	int rc;

	for (int i = 0; i < n; i++)
		prdma_set_recv(&list[i], &wrs[i]);
	list[n - 1].next = NULL;
	errno = 0;
	rc = prdma_normalise(qp->context->ops.post_recv(qp, list, &bad));
	*bad_index = rc ? index_of(bad, list, sizeof(list[0]), n) : n;
	return rc;
}

static int chunk_of(int left)
{
	return left < CHUNK ? left : CHUNK;
}

int prdma_post_send(struct ibv_qp *qp, const struct prdma_send_wr *wrs, int n, int *bad_index)
{
	int done = 0, posted, rc = 0;

	for (; done < n && !rc; done += posted)
		rc = post_send_chunk(qp, wrs + done, chunk_of(n - done), &posted);
	*bad_index = done;
	return rc;
}

int prdma_post_recv(struct ibv_qp *qp, const struct prdma_recv_wr *wrs, int n, int *bad_index)
{
	int done = 0, posted, rc = 0;

	for (; done < n && !rc; done += posted)
		rc = post_recv_chunk(qp, wrs + done, chunk_of(n - done), &posted);
	*bad_index = done;
	return rc;
}
