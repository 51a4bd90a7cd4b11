/*
 * The agent's stream: frames that Python writes and heartbeats that a thread of our own writes, one at a time.
 *
 * A frame is a 4-byte big-endian length and the payload. The descriptor may be a pipe or a socket, blocking or not:
 * a write never takes more than poll(2) has promised.
 */
#include "wait.h"

#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define BEAT_BYTES 4096
#define CALL_BYTES 48 /* the longest "[id,seconds]," */
#define CUT_NS INT64_C(30000000000) /* how long a beat that was begun may take to get out */

struct frame {
	uint8_t head[4];
	const uint8_t *payload;
	size_t length;
	size_t done; /* of head and payload together */
};

static long futex(_Atomic int32_t *word, int operation, int32_t value, const struct timespec *timeout)
{
	return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

/* Sleeps while *word is `value`, not beyond the deadline. */
static void sleep_on(_Atomic int32_t *word, int32_t value, int64_t deadline_ns)
{
	int64_t left = deadline_ns - prdma_now_ns();
	struct timespec timeout = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};

	if (left > 0)
		futex(word, FUTEX_WAIT_PRIVATE, value, &timeout);
}

/* A mutex with a deadline on the monotonic clock: 0 free, 1 held, 2 held and somebody waits. */
static int lock(struct prdma_writer *writer, int64_t deadline_ns)
{
	int32_t free_word = 0;

	if (atomic_compare_exchange_strong(&writer->lock, &free_word, 1))
		return 0;
	while (atomic_exchange(&writer->lock, 2)) {
		if (prdma_now_ns() >= deadline_ns)
			return -ETIMEDOUT;
		sleep_on(&writer->lock, 2, deadline_ns);
	}
	return 0;
}

static void unlock(struct prdma_writer *writer)
{
	if (atomic_exchange(&writer->lock, 0) == 2)
		futex(&writer->lock, FUTEX_WAKE_PRIVATE, 1, NULL);
}

/* What is left of the frame, at most `room` bytes. */
static int remainder_of(const struct frame *frame, size_t room, struct iovec *parts)
{
	size_t head_left = frame->done < 4 ? 4 - frame->done : 0;
	size_t skip = frame->done < 4 ? 0 : frame->done - 4;
	size_t left = frame->length - skip;
	int n = 0;

	if (head_left)
		parts[n++] = (struct iovec){(void *)(uintptr_t)(frame->head + frame->done), head_left};
	if (left)
		parts[n++] = (struct iovec){
			(void *)(uintptr_t)(frame->payload + skip),
			left < room - head_left ? left : room - head_left,
		};
	return n;
}

/* A pipe that poll(2) calls writable takes PIPE_BUF bytes without blocking. */
static ssize_t write_to_pipe(int fd, const struct frame *frame)
{
	struct iovec parts[2];
	int n = remainder_of(frame, PIPE_BUF, parts);

	return writev(fd, parts, n);
}

static ssize_t write_some(int fd, const struct frame *frame)
{
	struct iovec parts[2];
	struct msghdr message = {.msg_iov = parts};
	ssize_t n;

	message.msg_iovlen = (size_t)remainder_of(frame, SSIZE_MAX, parts);
	n = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (n < 0 && errno == ENOTSOCK)
		n = write_to_pipe(fd, frame);
	return n < 0 ? -errno : n;
}

static int await_room(int fd, int64_t deadline_ns, const _Atomic int32_t *stop)
{
	int rc;

	do {
		rc = prdma_poll_fd(fd, POLLOUT, deadline_ns);
		if (rc)
			return rc < 0 ? rc : 0;
		if (stop && atomic_load(stop))
			return -ECANCELED;
	} while (prdma_now_ns() < deadline_ns);
	return -ETIMEDOUT;
}

static int is_transient(ssize_t rc)
{
	return rc == -EAGAIN || rc == -EWOULDBLOCK || rc == -EINTR;
}

/* Until the first byte is out `first_ns` binds, then `whole_ns`. */
static int write_frame(int fd, struct frame *frame, int64_t first_ns, int64_t whole_ns, const _Atomic int32_t *stop)
{
	while (frame->done < 4 + frame->length) {
		int rc = await_room(fd, frame->done ? whole_ns : first_ns, stop);
		ssize_t n;

		if (rc)
			return rc;
		n = write_some(fd, frame);
		if (n < 0 && !is_transient(n))
			return (int)n;
		if (n > 0)
			frame->done += (size_t)n;
	}
	return 0;
}

/* A frame that was cut, or a reader that is gone, is the end of the stream. */
static int write_locked(struct prdma_writer *writer, struct frame *frame, int64_t first_ns, int64_t whole_ns,
			const _Atomic int32_t *stop)
{
	int rc;

	if (atomic_load(&writer->broken))
		return -EPIPE;
	rc = write_frame(writer->fd, frame, first_ns, whole_ns, stop);
	if (!rc || (!frame->done && (rc == -ETIMEDOUT || rc == -ECANCELED)))
		return rc;
	atomic_store(&writer->broken, 1);
	return rc == -ETIMEDOUT || rc == -ECANCELED || rc == -ECONNRESET ? -EPIPE : rc;
}

static struct frame frame_of(const void *payload, uint32_t length)
{
	struct frame frame = {.payload = payload, .length = length};
	uint32_t head = htobe32(length);

	memcpy(frame.head, &head, sizeof(head));
	return frame;
}

/* SIGPIPE is for the thread that writes; blocked there and taken off again, it reaches nobody. */
static int block_sigpipe(sigset_t *before)
{
	sigset_t only, pending;

	sigemptyset(&only);
	sigaddset(&only, SIGPIPE);
	sigpending(&pending);
	pthread_sigmask(SIG_BLOCK, &only, before);
	return sigismember(&pending, SIGPIPE);
}

static void restore_sigpipe(const sigset_t *before, int was_pending)
{
	const struct timespec at_once = {0, 0};
	sigset_t only;

	sigemptyset(&only);
	sigaddset(&only, SIGPIPE);
	if (!was_pending)
		while (sigtimedwait(&only, NULL, &at_once) < 0 && errno == EINTR)
			;
	pthread_sigmask(SIG_SETMASK, before, NULL);
}

int prdma_frame_write(struct prdma_writer *writer, const void *payload, uint32_t length, int64_t deadline_ns)
{
	struct frame frame = frame_of(payload, length);
	sigset_t before;
	int was_pending = block_sigpipe(&before);
	int rc = lock(writer, deadline_ns);

	if (!rc) {
		rc = write_locked(writer, &frame, deadline_ns, deadline_ns, NULL);
		unlock(writer);
	}
	restore_sigpipe(&before, was_pending);
	return rc;
}

void prdma_writer_init(struct prdma_writer *writer, int fd)
{
	memset(writer, 0, sizeof(*writer));
	writer->fd = fd;
}

int prdma_call_begin(struct prdma_writer *writer, uint64_t id)
{
	for (int i = 0; i < PRDMA_SLOTS; i++) {
		int64_t unused = 0;

		/* The start time claims the slot; the id, stored last, publishes it. */
		if (atomic_compare_exchange_strong(&writer->slots[i].start_ns, &unused, prdma_now_ns())) {
			atomic_store(&writer->slots[i].id, id);
			return i;
		}
	}
	return -EBUSY;
}

void prdma_call_end(struct prdma_writer *writer, int index)
{
	atomic_store(&writer->slots[index].id, 0);
	atomic_store(&writer->slots[index].start_ns, 0);
}

struct text {
	char bytes[BEAT_BYTES];
	uint32_t length;
};

static void put_text(struct text *text, const char *part)
{
	size_t n = strlen(part);

	memcpy(text->bytes + text->length, part, n);
	text->length += (uint32_t)n;
}

static void put_number(struct text *text, uint64_t value)
{
	char digits[21];
	char *at = digits + sizeof(digits) - 1;

	*at = 0;
	do
		*--at = (char)('0' + value % 10);
	while (value /= 10);
	put_text(text, at);
}

static void put_seconds(struct text *text, int64_t ns)
{
	uint64_t ms = ns > 0 ? (uint64_t)ns / 1000000 : 0;

	put_number(text, ms / 1000);
	put_text(text, ms % 1000 < 10 ? ".00" : ms % 1000 < 100 ? ".0" : ".");
	put_number(text, ms % 1000);
}

/* A slot that changed hands between the two looks is left out; the next beat has it. */
static int read_slot(struct prdma_slot *slot, uint64_t *id, int64_t *start_ns)
{
	*id = atomic_load(&slot->id);
	*start_ns = atomic_load(&slot->start_ns);
	return *id && *start_ns && atomic_load(&slot->id) == *id;
}

static void put_calls(struct text *text, struct prdma_writer *writer)
{
	const char *separator = "";
	int64_t start_ns, now_ns = prdma_now_ns();
	uint64_t id;

	for (int i = 0; i < PRDMA_SLOTS && text->length + CALL_BYTES < BEAT_BYTES; i++) {
		if (!read_slot(&writer->slots[i], &id, &start_ns))
			continue;
		put_text(text, separator);
		put_text(text, "[");
		put_number(text, id);
		put_text(text, ",");
		put_seconds(text, now_ns - start_ns);
		put_text(text, "]");
		separator = ",";
	}
}

static int beat(struct prdma_writer *writer, int64_t interval_ns)
{
	struct text text = {.length = 0};
	struct frame frame;
	int64_t now_ns = prdma_now_ns();
	int rc;

	put_text(&text, "{\"t\":\"beat\",\"n\":");
	put_number(&text, ++writer->beats);
	put_text(&text, ",\"calls\":[");
	put_calls(&text, writer);
	put_text(&text, "]}");
	frame = frame_of(text.bytes, text.length);
	rc = lock(writer, now_ns + interval_ns);
	if (rc)
		return rc;
	rc = write_locked(writer, &frame, now_ns + interval_ns, now_ns + CUT_NS, &writer->stop);
	unlock(writer);
	return rc;
}

/* A stream that is full for the moment costs a beat, and leaves a gap in their numbers, but not the heartbeat. */
static void *heartbeat(void *argument)
{
	struct prdma_writer *writer = argument;
	int64_t interval_ns = INT64_C(1000000) * writer->interval_ms;
	int64_t next_ns = prdma_now_ns();
	int rc = 0;

	while (!atomic_load(&writer->stop) && (!rc || rc == -ETIMEDOUT)) {
		rc = beat(writer, interval_ns);
		next_ns += interval_ns;
		if (next_ns < prdma_now_ns())
			next_ns = prdma_now_ns();
		while (!atomic_load(&writer->stop) && prdma_now_ns() < next_ns)
			sleep_on(&writer->stop, 0, next_ns);
	}
	/* SIGALRM needs no interpreter: it ends a process whose Python is stuck and cannot hear that nobody is there. */
	if (writer->orphan_s && !atomic_load(&writer->stop))
		alarm((unsigned int)writer->orphan_s);
	return NULL;
}

int prdma_heartbeat_start(struct prdma_writer *writer, int interval_ms)
{
	sigset_t all, before;
	pthread_t thread;
	int rc;

	if (writer->beating || interval_ms < 1)
		return -EINVAL;
	writer->interval_ms = interval_ms;
	atomic_store(&writer->stop, 0);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&thread, NULL, heartbeat, writer);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc)
		return -rc;
	writer->thread = (uint64_t)(uintptr_t)thread;
	writer->beating = 1;
	return 0;
}

int prdma_heartbeat_stop(struct prdma_writer *writer)
{
	if (!writer->beating)
		return 0;
	atomic_store(&writer->stop, 1);
	futex(&writer->stop, FUTEX_WAKE_PRIVATE, 1, NULL);
	writer->beating = 0;
	return -pthread_join((pthread_t)(uintptr_t)writer->thread, NULL);
}
