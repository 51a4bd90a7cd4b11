#include "check.h"
#include "stub.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#define MANY 200 /* more than fit in one linked list */

static struct prdma_send_wr sends[MANY];
static struct prdma_recv_wr recvs[MANY];
static struct prdma_sge sges[MANY][2];

static struct stub *prepare(void)
{
	for (int i = 0; i < MANY; i++) {
		sges[i][0] = (struct prdma_sge){0x10000000000 + (uint64_t)i, (uint32_t)i + 1, 7};
		sges[i][1] = (struct prdma_sge){0x20000000000, 3, 8};
		sends[i] = (struct prdma_send_wr){.wr_id = (uint64_t)i, .sge = (uintptr_t)sges[i], .num_sge = i % 3,
						  .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
		recvs[i] = (struct prdma_recv_wr){.wr_id = (uint64_t)i, .sge = (uintptr_t)sges[i], .num_sge = i % 3};
	}
	return stub_new();
}

static int64_t post_one(struct stub *stub, struct prdma_send_wr wr)
{
	int bad_index;

	return prdma_post_send(&stub->qp, &wr, 1, &bad_index);
}

static void check_posts(const struct stub_post *posts, int n)
{
	for (int i = 0; i < n; i++) {
		EQ(posts[i].wr_id, i);
		EQ(posts[i].num_sge, i % 3);
		if (i % 3) {
			EQ(posts[i].sges[0].addr, 0x10000000000 + i);
			EQ(posts[i].sges[0].length, i + 1);
			EQ(posts[i].sges[0].lkey, 7);
		}
	}
}

TEST(sends_arrive_in_order_whatever_their_number)
{
	struct stub *stub = prepare();
	int bad_index = -5;

	EQ(prdma_post_send(&stub->qp, sends, MANY, &bad_index), 0);
	EQ(bad_index, MANY);
	EQ(stub->send_count, MANY);
	check_posts(stub->sends, MANY);
	stub_free(stub);
}

TEST(receives_arrive_in_order_whatever_their_number)
{
	struct stub *stub = prepare();
	int bad_index = -5;

	EQ(prdma_post_recv(&stub->qp, recvs, MANY, &bad_index), 0);
	EQ(bad_index, MANY);
	EQ(stub->recv_count, MANY);
	check_posts(stub->recvs, MANY);
	stub_free(stub);
}

TEST(up_to_64_requests_are_one_linked_list)
{
	struct stub *stub = prepare();
	int bad_index;

	EQ(prdma_post_send(&stub->qp, sends, 64, &bad_index), 0);
	EQ(stub->post_calls, 1);
	stub_free(stub);
}

TEST(an_empty_list_does_not_reach_the_provider)
{
	struct stub *stub = prepare();
	int bad_index = -5;

	EQ(prdma_post_send(&stub->qp, sends, 0, &bad_index), 0);
	EQ(prdma_post_recv(&stub->qp, recvs, 0, &bad_index), 0);
	EQ(bad_index, 0);
	EQ(stub->post_calls, 0);
	stub_free(stub);
}

static void refused_at(int at)
{
	struct stub *stub = prepare();
	int bad_index;

	stub->refuse_at = at;
	stub->refuse_rc = ENOMEM;
	EQ(prdma_post_send(&stub->qp, sends, MANY, &bad_index), -ENOMEM);
	EQ(bad_index, at);
	EQ(stub->send_count, at);
	EQ(prdma_post_recv(&stub->qp, recvs, MANY, &bad_index), -ENOMEM);
	EQ(bad_index, at);
	EQ(stub->recv_count, at);
	stub_free(stub);
}

TEST(bad_index_names_the_refused_request)
{
	refused_at(0);
	refused_at(1);
	refused_at(63);
	refused_at(64);
	refused_at(130);
	refused_at(MANY - 1);
}

TEST(a_provider_that_does_not_name_the_refused_request_is_survived)
{
	struct stub *stub = prepare();
	int bad_index;

	stub->refuse_at = 70;
	stub->refuse_rc = EINVAL;
	stub->refuse_silently = 1;
	EQ(prdma_post_send(&stub->qp, sends, MANY, &bad_index), -EINVAL);
	EQ(bad_index, 64); /* the first of its list */
	stub_free(stub);
}

static int64_t outcome(int rc, int with_errno)
{
	struct stub *stub = prepare();
	int64_t send_rc, recv_rc;
	int bad_index;

	stub->refuse_at = 0;
	stub->refuse_rc = rc;
	stub->refuse_errno = with_errno;
	send_rc = prdma_post_send(&stub->qp, sends, 1, &bad_index);
	recv_rc = prdma_post_recv(&stub->qp, recvs, 1, &bad_index);
	EQ(send_rc, recv_rc);
	stub_free(stub);
	return send_rc;
}

TEST(each_way_of_a_provider_to_say_no_becomes_a_negative_errno)
{
	EQ(outcome(ENOMEM, 0), -ENOMEM);
	EQ(outcome(-ENOMEM, 0), -ENOMEM);
	EQ(outcome(-1, ENOMEM), -ENOMEM);
	EQ(outcome(EINVAL, ENOMEM), -EINVAL);
	EQ(outcome(-EINVAL, ENOMEM), -EINVAL);
	EQ(outcome(-1, 0), -EPERM);
}

TEST(a_stale_errno_is_not_taken_for_the_cause)
{
	struct stub *stub = prepare();
	int bad_index;

	errno = EBADF;
	EQ(prdma_post_send(&stub->qp, sends, 1, &bad_index), 0);
	errno = EBADF;
	EQ(outcome(-1, 0), -EPERM);
	stub_free(stub);
}

TEST(immediates_are_in_network_order_for_the_provider)
{
	const uint32_t values[] = {0, 0x01020304, 0x89abcdef, 0xffffffff};
	struct stub *stub = prepare();

	for (int i = 0; i < 4; i++) {
		struct prdma_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm = values[i]};

		EQ(post_one(stub, wr), 0);
		EQ(stub->sends[i].imm_be, htonl(values[i]));
	}
	EQ(((const uint8_t *)&stub->sends[1].imm_be)[0], 1);
	stub_free(stub);
}

TEST(a_key_to_invalidate_is_not_swapped)
{
	struct stub *stub = prepare();

	EQ(post_one(stub, (struct prdma_send_wr){.opcode = IBV_WR_SEND_WITH_INV, .invalidate_rkey = 0x01020304}), 0);
	EQ(post_one(stub, (struct prdma_send_wr){.opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = 0x01020304}), 0);
	EQ(stub->sends[0].wr.invalidate_rkey, 0x01020304);
	EQ(stub->sends[1].wr.invalidate_rkey, 0x01020304);
	stub_free(stub);
}

TEST(each_opcode_carries_its_operands)
{
	struct prdma_send_wr wr = {.remote_addr = 0x7f0123456789, .compare_add = 11, .swap = 22, .rkey = 33};
	struct stub *stub = prepare();

	for (wr.opcode = 0; wr.opcode <= IBV_WR_ATOMIC_FETCH_AND_ADD; wr.opcode++) {
		const struct ibv_send_wr *seen = &stub->sends[wr.opcode].wr;

		EQ(post_one(stub, wr), 0);
		EQ(seen->opcode, wr.opcode);
		EQ(seen->wr.rdma.remote_addr, 0x7f0123456789);
		if (wr.opcode < IBV_WR_ATOMIC_CMP_AND_SWP) {
			EQ(seen->wr.rdma.rkey, 33);
			continue;
		}
		EQ(seen->wr.atomic.compare_add, 11);
		EQ(seen->wr.atomic.swap, 22);
		EQ(seen->wr.atomic.rkey, 33);
	}
	stub_free(stub);
}

TEST(a_memory_window_is_bound_with_its_operands)
{
	struct prdma_send_wr wr = {.opcode = IBV_WR_BIND_MW, .mw = 0x1000, .mw_mr = 0x2000, .mw_addr = 0x3000,
				   .mw_length = 0x100000001, .mw_access = 6, .rkey = 44};
	struct stub *stub = prepare();
	const struct ibv_send_wr *seen = &stub->sends[0].wr;

	EQ(post_one(stub, wr), 0);
	EQ((uintptr_t)seen->bind_mw.mw, 0x1000);
	EQ(seen->bind_mw.rkey, 44);
	EQ((uintptr_t)seen->bind_mw.bind_info.mr, 0x2000);
	EQ(seen->bind_mw.bind_info.addr, 0x3000);
	EQ(seen->bind_mw.bind_info.length, 0x100000001);
	EQ(seen->bind_mw.bind_info.mw_access_flags, 6);
	stub_free(stub);
}

TEST(a_datagram_carries_its_destination)
{
	struct prdma_send_wr wr = {.opcode = IBV_WR_SEND_WITH_IMM, .ah = 0x5000, .remote_qpn = 6, .remote_qkey = 7};
	struct stub *stub = prepare();

	EQ(post_one(stub, wr), 0);
	EQ((uintptr_t)stub->sends[0].wr.wr.ud.ah, 0x5000);
	EQ(stub->sends[0].wr.wr.ud.remote_qpn, 6);
	EQ(stub->sends[0].wr.wr.ud.remote_qkey, 7);
	stub_free(stub);
}

TEST(forged_fields_reach_the_provider_unchanged)
{
	struct prdma_send_wr wr = {.opcode = 12345, .send_flags = 0xffffffff, .num_sge = 0x7fffffff};
	struct stub *stub = prepare();

	stub->refuse_at = 0;
	stub->refuse_rc = EINVAL;
	EQ(post_one(stub, wr), -EINVAL);
	stub->refuse_at = -1;
	wr.num_sge = -1;
	EQ(post_one(stub, wr), 0);
	EQ(stub->sends[0].opcode, 12345);
	EQ(stub->sends[0].send_flags, 0xffffffff);
	EQ(stub->sends[0].num_sge, -1);
	stub_free(stub);
}
