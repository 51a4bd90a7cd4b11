/* How our requests become the provider's, shared by single posts and loops. */
#ifndef PRDMA_POST_H
#define PRDMA_POST_H

#include "prdma.h"

/* Providers return a positive errno, a negative one, or -1 with errno set. */
int prdma_normalise(int rc);
void prdma_set_send(struct ibv_send_wr *to, const struct prdma_send_wr *wr);
void prdma_set_recv(struct ibv_recv_wr *to, const struct prdma_recv_wr *wr);

#endif
