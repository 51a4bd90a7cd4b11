/* Print where the members of the structures lie that pytest_rdma/cm_library.py mirrors. */
#include <rdma/rdma_cma.h>
#include <stddef.h>
#include <stdio.h>

#define SIZE(type) printf(#type " %zu\n", sizeof(struct type))
#define AT(type, member) printf(#type "." #member " %zu\n", offsetof(struct type, member))

int main(void)
{
	SIZE(rdma_event_channel);
	AT(rdma_event_channel, fd);
	AT(rdma_cm_id, verbs);
	AT(rdma_cm_id, channel);
	AT(rdma_cm_id, qp);
	printf("rdma_cm_id.src_addr %zu\n", offsetof(struct rdma_cm_id, route.addr.src_addr));
	printf("rdma_cm_id.dst_addr %zu\n", offsetof(struct rdma_cm_id, route.addr.dst_addr));
	AT(rdma_cm_id, ps);
	AT(rdma_cm_id, port_num);
	SIZE(rdma_conn_param);
	AT(rdma_conn_param, private_data_len);
	AT(rdma_conn_param, responder_resources);
	AT(rdma_conn_param, initiator_depth);
	AT(rdma_conn_param, flow_control);
	AT(rdma_conn_param, retry_count);
	AT(rdma_conn_param, rnr_retry_count);
	AT(rdma_conn_param, srq);
	AT(rdma_conn_param, qp_num);
	SIZE(rdma_cm_event);
	AT(rdma_cm_event, id);
	AT(rdma_cm_event, listen_id);
	AT(rdma_cm_event, event);
	AT(rdma_cm_event, status);
	printf("rdma_cm_event.conn %zu\n", offsetof(struct rdma_cm_event, param.conn));
	SIZE(ibv_global_route);
	AT(ibv_global_route, flow_label);
	AT(ibv_global_route, sgid_index);
	AT(ibv_global_route, hop_limit);
	AT(ibv_global_route, traffic_class);
	SIZE(ibv_ah_attr);
	AT(ibv_ah_attr, dlid);
	AT(ibv_ah_attr, sl);
	AT(ibv_ah_attr, is_global);
	AT(ibv_ah_attr, port_num);
	SIZE(ibv_qp_attr);
	AT(ibv_qp_attr, path_mtu);
	AT(ibv_qp_attr, rq_psn);
	AT(ibv_qp_attr, sq_psn);
	AT(ibv_qp_attr, dest_qp_num);
	AT(ibv_qp_attr, qp_access_flags);
	AT(ibv_qp_attr, ah_attr);
	AT(ibv_qp_attr, pkey_index);
	AT(ibv_qp_attr, max_rd_atomic);
	AT(ibv_qp_attr, max_dest_rd_atomic);
	AT(ibv_qp_attr, min_rnr_timer);
	AT(ibv_qp_attr, port_num);
	AT(ibv_qp_attr, timeout);
	AT(ibv_qp_attr, retry_cnt);
	AT(ibv_qp_attr, rnr_retry);
	AT(ibv_qp_attr, rate_limit);
	return 0;
}
