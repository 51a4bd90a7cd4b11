#include "check.h"
#include "stub.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int stop;

static void *stop_soon(void *argument)
{
	usleep(20000);
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	return argument;
}

TEST(a_readable_descriptor_ends_the_wait)
{
	int ends[2];

	EQ(pipe(ends), 0);
	EQ(write(ends[1], "x", 1), 1);
	EQ(prdma_wait_fd(ends[0], in_ms(5000), NULL), 1);
	EQ(prdma_wait_fd(ends[0], 0, NULL), 1);
}

TEST(an_end_of_file_ends_the_wait)
{
	int ends[2];

	EQ(pipe(ends), 0);
	close(ends[1]);
	EQ(prdma_wait_fd(ends[0], in_ms(5000), NULL), 1);
}

TEST(a_silent_descriptor_waits_out_the_deadline)
{
	int64_t deadline_ns = in_ms(50);
	int ends[2];

	EQ(pipe(ends), 0);
	EQ(prdma_wait_fd(ends[0], 0, NULL), 0);
	EQ(prdma_wait_fd(ends[0], deadline_ns, NULL), 0);
	OK(now_ns() >= deadline_ns);
	OK(now_ns() < deadline_ns + 1000000000);
}

TEST(a_closed_descriptor_is_an_error)
{
	int ends[2];

	EQ(pipe(ends), 0);
	close(ends[0]);
	EQ(prdma_wait_fd(ends[0], in_ms(5000), NULL), -EBADF);
	EQ(prdma_set_nonblocking(ends[0]), -EBADF);
}

TEST(a_stop_is_heard_by_a_wait_on_a_descriptor)
{
	int64_t begin_ns = now_ns();
	pthread_t thread;
	int ends[2];

	EQ(pipe(ends), 0);
	EQ(pthread_create(&thread, NULL, stop_soon, NULL), 0);
	EQ(prdma_wait_fd(ends[0], in_ms(20000), &stop), -ECANCELED);
	OK(now_ns() - begin_ns < 1000000000);
	pthread_join(thread, NULL);
}

TEST(a_completion_event_is_given_and_acknowledged)
{
	struct stub *stub = stub_new();
	struct prdma_verbs verbs;
	uint64_t cq = 0;

	stub_verbs(&verbs);
	EQ(prdma_wait_cq_event(&stub->channel, &verbs, &cq, in_ms(10), NULL), 0);
	stub_ring(stub);
	EQ(prdma_wait_cq_event(&stub->channel, &verbs, &cq, in_ms(5000), NULL), 1);
	EQ(cq, (uintptr_t)&stub->cq);
	EQ(stub->acked, 1);
	OK(fcntl(stub->channel.fd, F_GETFL) & O_NONBLOCK);
	stub_free(stub);
}

TEST(an_async_event_says_whom_it_is_about)
{
	struct prdma_async_event event;
	struct stub *stub = stub_new();
	struct prdma_verbs verbs;

	stub_verbs(&verbs);
	EQ(prdma_wait_async_event(&stub->context, &verbs, &event, in_ms(10), NULL), 0);
	stub_raise_async(stub, IBV_EVENT_CQ_ERR);
	EQ(prdma_wait_async_event(&stub->context, &verbs, &event, in_ms(5000), NULL), 1);
	EQ(event.event_type, IBV_EVENT_CQ_ERR);
	EQ(event.number, 9);
	EQ(event.element, (uintptr_t)&stub->cq);
	stub_raise_async(stub, IBV_EVENT_PORT_ERR);
	EQ(prdma_wait_async_event(&stub->context, &verbs, &event, in_ms(5000), NULL), 1);
	EQ(event.number, 2);
	EQ(event.element, 0);
	stub->qp.qp_num = 0x1234;
	stub_raise_async(stub, IBV_EVENT_QP_FATAL);
	EQ(prdma_wait_async_event(&stub->context, &verbs, &event, in_ms(5000), NULL), 1);
	EQ(event.number, 0x1234);
	EQ(stub->async_acked, 2);
	stub_free(stub);
}

TEST(memory_that_is_not_there_is_an_error_to_peek)
{
	char *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t word = 42, seen = 0;

	EQ(prdma_peek((uintptr_t)&word, &seen, sizeof(seen)), 0);
	EQ(seen, 42);
	EQ(prdma_peek(0, &seen, sizeof(seen)), -EFAULT);
	EQ(prdma_peek(8, &seen, sizeof(seen)), -EFAULT);
	EQ(prdma_peek(UINT64_MAX - 3, &seen, sizeof(seen)), -EFAULT);
	EQ(prdma_peek((uintptr_t)page, &seen, sizeof(seen)), -EFAULT);
}

TEST(the_views_say_what_the_structures_hold)
{
	struct stub *stub = stub_new();
	struct prdma_qp_view qp;
	struct prdma_cq_view cq;

	EQ(prdma_qp_view((uintptr_t)&stub->qp, &qp), 0);
	EQ(qp.context, (uintptr_t)&stub->context);
	EQ(qp.send_cq, (uintptr_t)&stub->cq);
	EQ(qp.qp_num, 0x1234);
	EQ(qp.handle, 3);
	EQ(qp.qp_type, IBV_QPT_RC);
	EQ(qp.cmd_fd, 77);
	EQ(qp.pd_handle, 5);
	EQ(qp.pd_context, (uintptr_t)&stub->context);
	EQ(prdma_cq_view((uintptr_t)&stub->cq, &cq), 0);
	EQ(cq.channel_fd, stub->channel.fd);
	EQ(cq.cqe, 255);
	EQ(cq.handle, 9);
	EQ(cq.cmd_fd, 77);
	stub->qp.context = NULL;
	EQ(prdma_qp_view((uintptr_t)&stub->qp, &qp), -EFAULT);
	stub_free(stub);
}
