#include "check.h"
#include "stub.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

static struct prdma_wc wcs[STUB_DEPTH];

static struct prdma_poll spec_of(struct stub *stub, int want, int64_t deadline_ns)
{
	return (struct prdma_poll){
		.cq = (uintptr_t)&stub->cq, .wc = (uintptr_t)wcs, .max = want, .want = want, .deadline_ns = deadline_ns,
	};
}

static void complete(struct stub *stub, int from, int to)
{
	for (int i = from; i < to; i++)
		stub_complete(stub, (uint64_t)i);
}

static void check_ids(int n)
{
	for (int i = 0; i < n; i++)
		EQ(wcs[i].wr_id, i);
}

TEST(poll_returns_exactly_what_is_wanted)
{
	struct stub *stub = stub_new();
	struct prdma_poll spec = spec_of(stub, 40, in_ms(5000));

	complete(stub, 0, 100);
	EQ(prdma_poll(&spec), 40);
	check_ids(40);
	EQ(stub->taken, 40);
	stub_free(stub);
}

TEST(poll_takes_more_where_there_is_room)
{
	struct stub *stub = stub_new();
	struct prdma_poll spec = spec_of(stub, 1, in_ms(5000));

	spec.max = 50;
	complete(stub, 0, 45);
	EQ(prdma_poll(&spec), 45);
	check_ids(45);
	stub_free(stub);
}

TEST(partial_polls_add_up)
{
	struct stub *stub = stub_new();
	struct prdma_poll spec = spec_of(stub, 100, in_ms(5000));

	stub->at_most_a_poll = 3;
	complete(stub, 0, 100);
	EQ(prdma_poll(&spec), 100);
	check_ids(100);
	stub_free(stub);
}

TEST(a_deadline_that_has_passed_looks_once)
{
	struct stub *stub = stub_new();
	struct prdma_poll spec = spec_of(stub, 1, 0);

	EQ(prdma_poll(&spec), 0);
	EQ(stub->poll_calls, 1);
	stub_free(stub);
}

TEST(at_the_deadline_what_came_is_returned)
{
	struct stub *stub = stub_new();
	struct prdma_poll spec = spec_of(stub, 10, in_ms(30));

	complete(stub, 0, 4);
	EQ(prdma_poll(&spec), 4);
	OK(now_ns() >= spec.deadline_ns);
	OK(now_ns() < spec.deadline_ns + 1000000000);
	check_ids(4);
	stub_free(stub);
}

TEST(a_poll_error_is_not_taken_for_completions)
{
	struct stub *stub = stub_new();
	struct prdma_poll spec = spec_of(stub, 1, in_ms(5000));

	stub->fail_poll_after = 0;
	stub->poll_rc = -EIO;
	EQ(prdma_poll(&spec), -EIO);
	stub->poll_rc = -1;
	stub->poll_errno = ENODEV;
	EQ(prdma_poll(&spec), -ENODEV);
	stub->poll_errno = 0;
	EQ(prdma_poll(&spec), -1);
	stub_free(stub);
}

TEST(completions_before_a_poll_error_are_kept)
{
	struct stub *stub = stub_new();
	struct prdma_poll spec = spec_of(stub, 10, in_ms(5000));

	stub->fail_poll_after = 4;
	stub->poll_rc = -EIO;
	complete(stub, 0, 10);
	EQ(prdma_poll(&spec), 4);
	check_ids(4);
	EQ(prdma_poll(&spec), -EIO);
	stub_free(stub);
}

TEST(immediates_come_back_in_host_order)
{
	const uint32_t values[] = {0, 0x01020304, 0x89abcdef, 0xffffffff};
	struct stub *stub = stub_new();
	struct prdma_poll spec = spec_of(stub, 4, in_ms(5000));

	for (int i = 0; i < 4; i++) {
		struct ibv_wc wc = {.wc_flags = IBV_WC_WITH_IMM, .imm_data = htonl(values[i])};

		stub_complete_wc(stub, &wc);
	}
	EQ(prdma_poll(&spec), 4);
	for (int i = 0; i < 4; i++)
		EQ(wcs[i].imm, values[i]);
	stub_free(stub);
}

TEST(an_invalidated_key_is_not_swapped_and_noise_is_not_an_immediate)
{
	struct ibv_wc invalidated = {.wc_flags = IBV_WC_WITH_INV, .invalidated_rkey = 0x01020304};
	struct ibv_wc noise = {.wc_flags = IBV_WC_GRH, .imm_data = 0x55555555};
	struct stub *stub = stub_new();
	struct prdma_poll spec = spec_of(stub, 2, in_ms(5000));

	stub_complete_wc(stub, &invalidated);
	stub_complete_wc(stub, &noise);
	EQ(prdma_poll(&spec), 2);
	EQ(wcs[0].imm, 0x01020304);
	EQ(wcs[1].imm, 0);
	stub_free(stub);
}

TEST(every_field_of_a_completion_arrives)
{
	struct ibv_wc wc = {.wr_id = UINT64_C(0xfedcba9876543210), .status = IBV_WC_REM_ACCESS_ERR, .opcode = IBV_WC_RECV,
			    .vendor_err = 3, .byte_len = 0xfffffff0, .qp_num = 5, .src_qp = 6, .wc_flags = IBV_WC_GRH,
			    .pkey_index = 7, .slid = 8, .sl = 9, .dlid_path_bits = 10};
	struct stub *stub = stub_new();
	struct prdma_poll spec = spec_of(stub, 1, in_ms(5000));

	stub_complete_wc(stub, &wc);
	EQ(prdma_poll(&spec), 1);
	OK(wcs[0].wr_id == UINT64_C(0xfedcba9876543210));
	EQ(wcs[0].status, 10);
	EQ(wcs[0].opcode, 128);
	EQ(wcs[0].vendor_err, 3);
	EQ(wcs[0].byte_len, 0xfffffff0);
	EQ(wcs[0].qp_num, 5);
	EQ(wcs[0].src_qp, 6);
	EQ(wcs[0].wc_flags, IBV_WC_GRH);
	EQ(wcs[0].pkey_index, 7);
	EQ(wcs[0].slid, 8);
	EQ(wcs[0].sl, 9);
	EQ(wcs[0].dlid_path_bits, 10);
	stub_free(stub);
}

struct helper {
	struct stub *stub;
	int stop;
	int completions;
};

static void *stop_soon(void *argument)
{
	struct helper *helper = argument;

	usleep(20000);
	__atomic_store_n(&helper->stop, 1, __ATOMIC_RELEASE);
	return NULL;
}

static void *complete_then_ring(void *argument)
{
	struct helper *helper = argument;

	for (int i = 0; i < helper->completions; i++) {
		usleep(2000);
		stub_complete(helper->stub, (uint64_t)i);
		stub_ring(helper->stub);
	}
	return NULL;
}

static void beside(struct helper *helper, void *(*run)(void *), pthread_t *thread)
{
	EQ(pthread_create(thread, NULL, run, helper), 0);
}

TEST(a_stop_from_another_thread_ends_a_poll)
{
	struct helper helper = {.stub = stub_new()};
	struct prdma_poll spec = spec_of(helper.stub, 1, in_ms(20000));
	pthread_t thread;

	spec.stop = (uintptr_t)&helper.stop;
	beside(&helper, stop_soon, &thread);
	EQ(prdma_poll(&spec), -ECANCELED);
	OK(now_ns() < spec.deadline_ns - INT64_C(15000000000));
	pthread_join(thread, NULL);
	stub_free(helper.stub);
}

TEST(completions_that_were_taken_survive_a_stop)
{
	struct helper helper = {.stub = stub_new()};
	struct prdma_poll spec = spec_of(helper.stub, 10, in_ms(20000));
	pthread_t thread;

	spec.stop = (uintptr_t)&helper.stop;
	complete(helper.stub, 0, 3);
	beside(&helper, stop_soon, &thread);
	EQ(prdma_poll(&spec), 3);
	check_ids(3);
	pthread_join(thread, NULL);
	stub_free(helper.stub);
}

TEST(completions_that_trickle_in_are_all_polled)
{
	struct helper helper = {.stub = stub_new(), .completions = 20};
	struct prdma_poll spec = spec_of(helper.stub, 20, in_ms(10000));
	pthread_t thread;

	beside(&helper, complete_then_ring, &thread);
	EQ(prdma_poll(&spec), 20);
	check_ids(20);
	pthread_join(thread, NULL);
	stub_free(helper.stub);
}

static int poll_events(struct stub *stub, const struct prdma_poll *spec)
{
	struct prdma_verbs verbs;

	stub_verbs(&verbs);
	return prdma_poll_events(spec, &stub->channel, &verbs, 0);
}

TEST(polling_by_events_sleeps_and_gets_all)
{
	struct helper helper = {.stub = stub_new(), .completions = 20};
	struct prdma_poll spec = spec_of(helper.stub, 20, in_ms(10000));
	pthread_t thread;

	beside(&helper, complete_then_ring, &thread);
	EQ(poll_events(helper.stub, &spec), 20);
	check_ids(20);
	pthread_join(thread, NULL);
	OK(helper.stub->poll_calls <= 3 * 20 + 3);
	OK(helper.stub->acked <= 20);
	stub_free(helper.stub);
}

TEST(a_completion_that_slips_in_before_arming_is_seen_without_an_event)
{
	struct stub *stub = stub_new();
	struct prdma_poll spec = spec_of(stub, 2, in_ms(10000));

	stub->complete_when_armed = 2;
	EQ(poll_events(stub, &spec), 2);
	OK(now_ns() < spec.deadline_ns - INT64_C(8000000000));
	stub_free(stub);
}

TEST(polling_by_events_keeps_its_deadline)
{
	struct stub *stub = stub_new();
	struct prdma_poll spec = spec_of(stub, 2, in_ms(30));

	complete(stub, 0, 1);
	EQ(poll_events(stub, &spec), 1);
	OK(now_ns() >= spec.deadline_ns);
	spec = spec_of(stub, 2, in_ms(30));
	EQ(poll_events(stub, &spec), 0);
	stub_free(stub);
}

TEST(polling_by_events_hears_a_stop)
{
	struct helper helper = {.stub = stub_new()};
	struct prdma_poll spec = spec_of(helper.stub, 1, in_ms(20000));
	pthread_t thread;
	int64_t begin_ns = now_ns();

	spec.stop = (uintptr_t)&helper.stop;
	beside(&helper, stop_soon, &thread);
	EQ(poll_events(helper.stub, &spec), -ECANCELED);
	OK(now_ns() - begin_ns < INT64_C(2000000000));
	pthread_join(thread, NULL);
	stub_free(helper.stub);
}

TEST(a_spurious_event_is_only_a_reason_to_look_again)
{
	struct stub *stub = stub_new();
	struct prdma_poll spec = spec_of(stub, 1, in_ms(30));

	stub_ring(stub);
	EQ(poll_events(stub, &spec), 0);
	EQ(stub->acked, 1);
	OK(stub->armed >= 2);
	stub_free(stub);
}

TEST(a_refused_arming_is_an_error)
{
	struct stub *stub = stub_new();
	struct prdma_poll spec = spec_of(stub, 1, in_ms(5000));

	stub->notify_rc = EIO;
	EQ(poll_events(stub, &spec), -EIO);
	EQ(prdma_req_notify(&stub->cq, 1), -EIO);
	EQ(stub->armed, 102);
	stub_free(stub);
}
