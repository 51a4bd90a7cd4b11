/*
 * One RDMA Write from a client into a server's memory, each step checked and each wait with a deadline.
 *
 *	write_once [OPTION]... server ADDRESS MESSAGE
 *	write_once [OPTION]... client ADDRESS PORT MESSAGE
 *
 * --defect NAME takes one of the checks, rights or waits away again, to show what a program without it does.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define BUFFER_BYTES 4096
#define MAGIC 0x50525731
#define READY 'R'
#define DONE 'D'
#define POLL_SLEEP_US 20000

#ifdef DEFECT_MASK_NAME
#define PATH_MTU_MASK IBV_QP_MTU
#else
#define PATH_MTU_MASK IBV_QP_PATH_MTU
#endif

#ifdef DEFECT_ADDRESS_TYPE
typedef uint32_t address;
#else
typedef uint64_t address;
#endif

enum defect {
	LOW_ADDRESS, MR_ACCESS, QP_ACCESS, NO_AV, SERVER_POLLS, NO_DEADLINE, UNCHECKED, DEVICE_UNCHECKED,
	SINGLE_RECV, NO_CHECK, LEAVE_EARLY, SLEEPING_POLL, DEFECTS
};
static const char *const defect_names[DEFECTS] = {
	"low-address", "mr-access", "qp-access", "no-av", "server-polls", "no-deadline", "unchecked",
	"device-unchecked", "single-recv", "no-check", "leave-early", "sleeping-poll",
};

struct record {
	uint32_t magic, qp_num, psn, rkey, lid, mtu;
	uint64_t addr;
	uint8_t gid[16];
} __attribute__((packed));

static struct {
	int defects[DEFECTS];
	const char *device, *port;
	int gid_index, repeat, timeout_s;
	int is_server;
	const char *address, *message;
} args = { .gid_index = 0, .repeat = 1, .timeout_s = 10, .port = "0" };

static struct ibv_context *context;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static char *buffer;
static uint32_t psn;

static int has(enum defect defect)
{
	return args.defects[defect];
}

/* End the program, unless its defect is that it looks at no result. */
static void failed(const char *format, ...)
{
	va_list list;

	if (has(UNCHECKED))
		return;
	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	fprintf(stderr, "\n");
	exit(1);
}

static void check(int failure, const char *what)
{
	if (failure)
		failed("cannot %s: %s", what, strerror(errno));
}

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* -- arguments */

static void usage(const char *why)
{
	fprintf(stderr, "%s; usage: write_once [OPTION]... server ADDRESS MESSAGE | client ADDRESS PORT MESSAGE\n", why);
	exit(2);
}

static void take_defect(const char *name)
{
	int i;

	for (i = 0; i < DEFECTS; i++)
		if (!strcmp(name, defect_names[i])) {
			args.defects[i] = 1;
			return;
		}
	usage("no such defect");
}

static void parse(int argc, char **argv)
{
	int i = 1;

	for (; i + 1 < argc && !strncmp(argv[i], "--", 2); i += 2) {
		if (!strcmp(argv[i], "--defect"))
			take_defect(argv[i + 1]);
		else if (!strcmp(argv[i], "--device"))
			args.device = argv[i + 1];
		else if (!strcmp(argv[i], "--gid"))
			args.gid_index = atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "--port"))
			args.port = argv[i + 1];
		else if (!strcmp(argv[i], "--repeat"))
			args.repeat = atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "--timeout"))
			args.timeout_s = atoi(argv[i + 1]);
		else
			usage("no such option");
	}
	args.is_server = argc == i + 3 && !strcmp(argv[i], "server");
	if (!args.is_server && (argc != i + 4 || strcmp(argv[i], "client")))
		usage("the first word must be server or client, with all of its arguments");
	args.address = argv[i + 1];
	if (!args.is_server)
		args.port = argv[i + 2];
	args.message = argv[argc - 1];
}

/* -- the TCP connection that carries the records */

static struct addrinfo *resolve(void)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST }, *found = NULL;
	int rc = getaddrinfo(args.address, args.port, &hints, &found);

	if (rc) {
		fprintf(stderr, "%s is no IP address: %s\n", args.address, gai_strerror(rc));
		exit(1);
	}
	return found;
}

static void limit_waits(int fd)
{
	struct timeval limit = { .tv_sec = args.timeout_s };

	if (has(NO_DEADLINE))
		return;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

static int bound_port(int fd)
{
	struct sockaddr_storage own;
	socklen_t size = sizeof(own);

	check(getsockname(fd, (struct sockaddr *)&own, &size), "ask for the port");
	if (own.ss_family == AF_INET6)
		return ntohs(((struct sockaddr_in6 *)&own)->sin6_port);
	return ntohs(((struct sockaddr_in *)&own)->sin_port);
}

static int meet(void)
{
	struct addrinfo *where = resolve();
	int fd = socket(where->ai_family, SOCK_STREAM, 0), accepted = fd;

	check(fd < 0, "make a socket");
	limit_waits(fd);
	if (args.is_server) {
		check(bind(fd, where->ai_addr, where->ai_addrlen), "bind");
		check(listen(fd, 1), "listen");
		printf("port %d\n", bound_port(fd));
		fflush(stdout);
		accepted = accept(fd, NULL, NULL);
		check(accepted < 0, "accept");
		close(fd);
		limit_waits(accepted);
	} else {
		check(connect(fd, where->ai_addr, where->ai_addrlen), "connect");
	}
	freeaddrinfo(where);
	return accepted;
}

static void send_whole(int fd, const void *data, size_t size)
{
	check(send(fd, data, size, MSG_NOSIGNAL) != (ssize_t)size, "send");
}

static void receive_whole(int fd, void *data, size_t size, const char *what)
{
	size_t got = 0;
	ssize_t n;

	do {
		n = recv(fd, (char *)data + got, size - got, 0);
		if (n < 0)
			failed("cannot receive %s: %s", what, strerror(errno));
		if (n <= 0)
			break;
		got += (size_t)n;
	} while (got < size && !has(SINGLE_RECV));
	if (got < size && !has(SINGLE_RECV))
		failed("%s ended after %zu of %zu bytes", what, got, size);
}

static void await_word(int fd, char word, const char *what)
{
	char heard = 0;

	receive_whole(fd, &heard, 1, what);
	if (heard != word)
		failed("%s is %d, not %d", what, heard, word);
}

static void say(int fd, char word)
{
	send_whole(fd, &word, 1);
}

/* -- verbs */

static void open_device(void)
{
	int count = 0, i;
	struct ibv_device **list = ibv_get_device_list(&count);

	if (has(DEVICE_UNCHECKED)) {
		context = ibv_open_device(list[count]);
		return;
	}
	for (i = 0; i < count && strcmp(ibv_get_device_name(list[i]), args.device); i++)
		;
	if (i == count)
		failed("no device %s among %d", args.device, count);
	context = ibv_open_device(list[i]);
	check(!context, "open the device");
	ibv_free_device_list(list);
}

static void make_objects(void)
{
	unsigned int access = IBV_ACCESS_LOCAL_WRITE;
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_pd *pd = ibv_alloc_pd(context);

	check(!pd, "allocate a PD");
	check(posix_memalign((void **)&buffer, BUFFER_BYTES, BUFFER_BYTES), "allocate memory");
	memset(buffer, 0, BUFFER_BYTES);
	if (args.is_server && !has(MR_ACCESS))
		access |= IBV_ACCESS_REMOTE_WRITE;
	mr = ibv_reg_mr(pd, buffer, BUFFER_BYTES, access);
	check(!mr, "register memory");
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	check(!cq, "make a CQ");
	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(pd, &init);
	check(!qp, "make a QP");
}

static void move(struct ibv_qp_attr *attr, int mask, const char *what)
{
	int rc = ibv_modify_qp(qp, attr, mask);

	if (rc)
		failed("cannot %s: %s", what, strerror(rc));
}

static void to_init(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

	if (has(QP_ACCESS))
		attr.qp_access_flags = IBV_ACCESS_LOCAL_WRITE;
	move(&attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "move the QP to INIT");
}

static void to_rts(const struct record *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = (enum ibv_mtu)be32toh(peer->mtu),
		.dest_qp_num = be32toh(peer->qp_num),
		.rq_psn = be32toh(peer->psn),
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .dlid = (uint16_t)be32toh(peer->lid) },
	};
	int mask = IBV_QP_STATE | IBV_QP_AV | PATH_MTU_MASK | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;

	memcpy(&attr.ah_attr.grh.dgid, peer->gid, sizeof(peer->gid));
	attr.ah_attr.grh.sgid_index = (uint8_t)args.gid_index;
	attr.ah_attr.grh.hop_limit = 64;
	if (has(NO_AV))
		mask &= ~IBV_QP_AV;
	move(&attr, mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, "move the QP to RTR");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 16, .retry_cnt = 6, .rnr_retry = 6, .sq_psn = psn, .max_rd_atomic = 1,
	};
	move(&attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
	     IBV_QP_MAX_QP_RD_ATOMIC, "move the QP to RTS");
}

static struct record own_record(void)
{
	struct ibv_port_attr port;
	union ibv_gid gid;
	address addr = (uintptr_t)buffer;
	struct record own = { .magic = htobe32(MAGIC), .qp_num = htobe32(qp->qp_num), .rkey = htobe32(mr->rkey) };

	check(ibv_query_port(context, 1, &port), "query the port");
	check(port.state != IBV_PORT_ACTIVE, "use a port that is not ACTIVE");
	check(ibv_query_gid(context, 1, args.gid_index, &gid), "query the GID");
	memcpy(own.gid, &gid, sizeof(own.gid));
	own.psn = htobe32(psn);
	own.lid = htobe32(port.lid);
	own.mtu = htobe32(port.active_mtu);
	own.addr = htobe64(has(LOW_ADDRESS) ? addr & 0xffffffff : addr);
	return own;
}

static void await_completion(void)
{
	int64_t end = now_ns() + args.timeout_s * 1000000000LL;
	struct ibv_wc wc;
	int got;

	do {
		if (has(SLEEPING_POLL))
			usleep(POLL_SLEEP_US);
		got = ibv_poll_cq(cq, 1, &wc);
		if (got == 0 && !has(NO_DEADLINE) && now_ns() > end)
			failed("no completion within %d s", args.timeout_s);
	} while (got == 0);
	check(got < 0, "poll the CQ");
	if (wc.status != IBV_WC_SUCCESS)
		failed("completion status %d: %s", wc.status, ibv_wc_status_str(wc.status));
}

static void write_message(const struct record *peer)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .lkey = mr->lkey };
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1,
	}, *bad;
	int64_t start, took, least = INT64_MAX;
	int i, rc;

	snprintf(buffer, BUFFER_BYTES, "%s", args.message);
	sge.length = (uint32_t)strlen(buffer) + 1;
	wr.wr.rdma.remote_addr = be64toh(peer->addr);
	wr.wr.rdma.rkey = be32toh(peer->rkey);
	for (i = 0; i < args.repeat; i++) {
		start = now_ns();
		rc = ibv_post_send(qp, &wr, &bad);
		if (rc)
			failed("cannot post the write: %s", strerror(rc));
		if (has(LEAVE_EARLY))
			exit(0);
		await_completion();
		took = now_ns() - start;
		least = took < least ? took : least;
	}
	printf("least_ns %lld\n", (long long)least);
}

static int serve(int fd)
{
	if (has(SERVER_POLLS))
		await_completion();
	await_word(fd, DONE, "the word that the client is done");
	say(fd, DONE);
	if (strcmp(buffer, args.message) && !has(NO_CHECK)) {
		fprintf(stderr, "the buffer does not hold the message: '%.64s'\n", buffer);
		return 1;
	}
	printf("received %.64s\n", buffer);
	return 0;
}

int main(int argc, char **argv)
{
	struct record own, peer = { 0 };
	int fd, rc = 0;

	parse(argc, argv);
	psn = (uint32_t)now_ns() & 0xffffff;
	open_device();
	make_objects();
	to_init();
	own = own_record();
	fd = meet();
	send_whole(fd, &own, sizeof(own));
	receive_whole(fd, &peer, sizeof(peer), "the record");
	if (be32toh(peer.magic) != MAGIC && !has(SINGLE_RECV))
		failed("the record is not one of ours");
	printf("peer qp %#x\n", be32toh(peer.qp_num));
	fflush(stdout);
	to_rts(&peer);
	say(fd, READY);
	await_word(fd, READY, "the word that the peer is ready");
	if (args.is_server) {
		rc = serve(fd);
	} else {
		write_message(&peer);
		say(fd, DONE);
		await_word(fd, DONE, "the word that the server is done");
	}
	ibv_destroy_qp(qp);
	ibv_destroy_cq(cq);
	ibv_dereg_mr(mr);
	close(fd);
	return rc;
}
