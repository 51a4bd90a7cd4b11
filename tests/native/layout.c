/* What Python needs to drive the stub without knowing its layout. */
#include "stub.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

PRDMA_API void *stub_qp(struct stub *stub);
PRDMA_API void *stub_cq(struct stub *stub);
PRDMA_API void *stub_channel(struct stub *stub);
PRDMA_API void *stub_context(struct stub *stub);
PRDMA_API void stub_complete_as(struct stub *stub, uint64_t wr_id, int status, unsigned int wc_flags, uint32_t imm);
PRDMA_API void stub_set(struct stub *stub, const char *name, int value);
PRDMA_API int stub_sent(struct stub *stub, int index, struct prdma_send_wr *out);

void *stub_qp(struct stub *stub)
{
	return &stub->qp;
}

void *stub_cq(struct stub *stub)
{
	return &stub->cq;
}

void *stub_channel(struct stub *stub)
{
	return &stub->channel;
}

void *stub_context(struct stub *stub)
{
	return &stub->context;
}

void stub_complete_as(struct stub *stub, uint64_t wr_id, int status, unsigned int wc_flags, uint32_t imm)
{
	struct ibv_wc wc = {.wr_id = wr_id, .status = (enum ibv_wc_status)status, .wc_flags = wc_flags, .byte_len = 64,
			    .qp_num = 0x1234, .opcode = IBV_WC_RECV, .imm_data = htonl(imm)};

	stub_complete_wc(stub, &wc);
}

void stub_set(struct stub *stub, const char *name, int value)
{
	const struct {
		const char *name;
		int *field;
	} fields[] = {
		{"refuse_at", &stub->refuse_at},
		{"refuse_rc", &stub->refuse_rc},
		{"poll_rc", &stub->poll_rc},
		{"fail_poll_after", &stub->fail_poll_after},
		{"at_most_a_poll", &stub->at_most_a_poll},
	};

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		if (!strcmp(fields[i].name, name)) {
			*fields[i].field = value;
			return;
		}
	abort();
}

/* What the provider saw of a send, in our words; returns its first SGE's length. */
int stub_sent(struct stub *stub, int index, struct prdma_send_wr *out)
{
	const struct stub_post *post = &stub->sends[index];

	*out = (struct prdma_send_wr){
		.wr_id = post->wr_id,
		.sge = post->sges[0].addr,
		.num_sge = post->num_sge,
		.opcode = (uint32_t)post->opcode,
		.send_flags = post->send_flags,
		.imm = ntohl(post->imm_be),
		.remote_addr = post->wr.wr.rdma.remote_addr,
		.rkey = post->wr.wr.rdma.rkey,
	};
	return (int)post->sges[0].length;
}
