#include "check.h"
#include "prdma.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LARGEST 300000

struct line {
	int ends[2]; /* read, write */
	struct prdma_writer writer;
};

static void on_pipe(struct line *line)
{
	EQ(pipe(line->ends), 0);
	prdma_writer_init(&line->writer, line->ends[1]);
}

static void on_socket(struct line *line)
{
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, line->ends), 0);
	prdma_writer_init(&line->writer, line->ends[1]);
}

static void read_exactly(int fd, void *to, size_t length)
{
	for (size_t done = 0; done < length;) {
		struct pollfd item = {.fd = fd, .events = POLLIN};
		ssize_t n;

		EQ(poll(&item, 1, 5000), 1);
		n = read(fd, (char *)to + done, length - done);
		OK(n > 0);
		done += (size_t)n;
	}
}

static uint32_t read_frame(int fd, char *to)
{
	uint32_t length;

	read_exactly(fd, &length, 4);
	length = ntohl(length);
	OK(length <= LARGEST);
	read_exactly(fd, to, length);
	to[length] = 0;
	return length;
}

static void fill_up(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	char block[512] = {0};

	fcntl(fd, F_SETFL, flags | O_NONBLOCK);
	while (write(fd, block, sizeof(block)) > 0)
		;
	fcntl(fd, F_SETFL, flags);
}

static char text[LARGEST + 1], payload[LARGEST];

TEST(a_frame_is_its_length_and_its_payload)
{
	static struct line line;
	uint8_t raw[7];

	on_pipe(&line);
	EQ(prdma_frame_write(&line.writer, "abc", 3, in_ms(5000)), 0);
	read_exactly(line.ends[0], raw, 7);
	OK(!memcmp(raw, "\0\0\0\3abc", 7));
	EQ(prdma_frame_write(&line.writer, "", 0, in_ms(5000)), 0);
	EQ(read_frame(line.ends[0], text), 0);
}

static void *write_numbered(void *argument)
{
	struct line *line = argument;

	for (int i = 0; i < 60; i++) {
		uint32_t length = i % 4 == 3 ? LARGEST : 1 + (uint32_t)i * 700;

		memset(payload, 'A' + i % 26, length);
		EQ(prdma_frame_write(&line->writer, payload, length, in_ms(20000)), 0);
	}
	return NULL;
}

/* Frames of all sizes, many larger than the pipe, with beats between them: none may be torn. */
static void frames_and_beats(struct line *line)
{
	int beats = 0;
	pthread_t thread;

	EQ(prdma_heartbeat_start(&line->writer, 1), 0);
	EQ(pthread_create(&thread, NULL, write_numbered, line), 0);
	for (int i = 0; i < 60 || beats < 2;) {
		uint32_t length = read_frame(line->ends[0], text);

		if (text[0] == '{') {
			OK(!strncmp(text, "{\"t\":\"beat\",\"n\":", 16));
			OK(strtol(text + 16, NULL, 10) > beats);
			beats = (int)strtol(text + 16, NULL, 10);
			EQ(text[length - 1], '}');
			continue;
		}
		EQ(length, i % 4 == 3 ? LARGEST : 1 + i * 700);
		for (uint32_t at = 0; at < length; at++)
			EQ(text[at], 'A' + i % 26);
		i++;
	}
	pthread_join(thread, NULL);
	EQ(prdma_heartbeat_stop(&line->writer), 0);
}

TEST(frames_stay_whole_among_beats_on_a_pipe)
{
	static struct line line;

	on_pipe(&line);
	frames_and_beats(&line);
}

TEST(frames_stay_whole_among_beats_on_a_non_blocking_pipe)
{
	static struct line line;

	on_pipe(&line);
	EQ(prdma_set_nonblocking(line.ends[1]), 0);
	frames_and_beats(&line);
}

TEST(frames_stay_whole_among_beats_on_a_socket)
{
	static struct line line;

	on_socket(&line);
	frames_and_beats(&line);
}

TEST(beats_list_the_calls_and_their_age)
{
	static struct line line;
	int first, second;

	on_pipe(&line);
	first = prdma_call_begin(&line.writer, 18446744073709551615u);
	second = prdma_call_begin(&line.writer, 7);
	atomic_store(&line.writer.slots[second].start_ns, now_ns() - INT64_C(12034000000));
	EQ(prdma_heartbeat_start(&line.writer, 50), 0);
	read_frame(line.ends[0], text);
	OK(!strncmp(text, "{\"t\":\"beat\",\"n\":1,\"calls\":[[18446744073709551615,0.0", 50));
	OK(strstr(text, "],[7,12.0") != NULL);
	prdma_call_end(&line.writer, first);
	prdma_call_end(&line.writer, second);
	read_frame(line.ends[0], text);
	OK(!strcmp(text, "{\"t\":\"beat\",\"n\":2,\"calls\":[]}"));
	EQ(prdma_heartbeat_stop(&line.writer), 0);
}

TEST(more_calls_than_slots_are_refused_and_fit_one_beat)
{
	static struct line line;
	int commas = 0;

	on_pipe(&line);
	for (int i = 0; i < PRDMA_SLOTS; i++)
		EQ(prdma_call_begin(&line.writer, UINT64_MAX - (uint64_t)i), i);
	EQ(prdma_call_begin(&line.writer, 1), -EBUSY);
	prdma_call_end(&line.writer, 5);
	EQ(prdma_call_begin(&line.writer, 1), 5);
	EQ(prdma_heartbeat_start(&line.writer, 1000), 0);
	read_frame(line.ends[0], text);
	for (const char *at = text; *at; at++)
		commas += *at == ',';
	EQ(commas, 2 + 2 * PRDMA_SLOTS - 1);
	EQ(prdma_heartbeat_stop(&line.writer), 0);
}

TEST(the_heartbeat_stops_at_once)
{
	static struct line line;
	int64_t begin_ns = now_ns();

	on_pipe(&line);
	EQ(prdma_heartbeat_start(&line.writer, 60000), 0);
	EQ(prdma_heartbeat_start(&line.writer, 60000), -EINVAL);
	EQ(prdma_heartbeat_stop(&line.writer), 0);
	EQ(prdma_heartbeat_stop(&line.writer), 0);
	OK(now_ns() - begin_ns < INT64_C(2000000000));
}

TEST(the_heartbeat_stops_on_a_full_stream)
{
	static struct line line;

	on_pipe(&line);
	fill_up(line.ends[1]);
	EQ(prdma_heartbeat_start(&line.writer, 60000), 0);
	EQ(prdma_heartbeat_stop(&line.writer), 0);
	EQ(line.writer.broken, 0);
}

TEST(a_full_stream_costs_beats_but_no_frame)
{
	static struct line line;
	char block[4096];

	on_pipe(&line);
	fill_up(line.ends[1]);
	EQ(prdma_heartbeat_start(&line.writer, 2), 0);
	usleep(30000);
	EQ(prdma_frame_write(&line.writer, "late", 4, in_ms(20)), -ETIMEDOUT);
	fcntl(line.ends[0], F_SETFL, O_NONBLOCK);
	while (read(line.ends[0], block, sizeof(block)) > 0 && !memchr(block, 't', sizeof(block)))
		;
	EQ(prdma_frame_write(&line.writer, "late", 4, in_ms(5000)), 0);
	EQ(prdma_heartbeat_stop(&line.writer), 0);
	EQ(line.writer.broken, 0);
}

TEST(a_frame_cut_by_its_deadline_ends_the_stream)
{
	static struct line line;

	on_pipe(&line);
	EQ(prdma_frame_write(&line.writer, payload, LARGEST, in_ms(20)), -EPIPE);
	EQ(prdma_frame_write(&line.writer, "x", 1, in_ms(5000)), -EPIPE);
	EQ(line.writer.broken, 1);
}

static void reader_goes(struct line *line)
{
	close(line->ends[0]);
	EQ(signal(SIGPIPE, SIG_DFL) == SIG_ERR, 0);
	EQ(prdma_frame_write(&line->writer, "x", 1, in_ms(5000)), -EPIPE);
	EQ(prdma_frame_write(&line->writer, "x", 1, in_ms(5000)), -EPIPE);
}

TEST(a_reader_that_is_gone_is_an_error_and_no_signal)
{
	static struct line line;
	sigset_t blocked, pending;

	on_pipe(&line);
	reader_goes(&line);
	on_socket(&line);
	reader_goes(&line);
	sigprocmask(SIG_BLOCK, NULL, &blocked);
	sigpending(&pending);
	EQ(sigismember(&blocked, SIGPIPE), 0);
	EQ(sigismember(&pending, SIGPIPE), 0);
}

TEST(the_heartbeat_ends_quietly_when_the_reader_is_gone)
{
	static struct line line;

	on_pipe(&line);
	signal(SIGPIPE, SIG_DFL);
	EQ(prdma_heartbeat_start(&line.writer, 1), 0);
	read_frame(line.ends[0], text);
	close(line.ends[0]);
	EQ(pthread_join((pthread_t)(uintptr_t)line.writer.thread, NULL), 0);
	EQ(line.writer.broken, 1);
}

static void on_alarm(int signal_number)
{
	(void)signal_number;
}

TEST(signals_to_the_process_never_land_in_the_heartbeat)
{
	static struct line line;
	struct sigaction action = {.sa_handler = on_alarm};

	on_pipe(&line);
	EQ(sigaction(SIGALRM, &action, NULL), 0);
	EQ(prdma_heartbeat_start(&line.writer, 1), 0);
	EQ(pthread_kill((pthread_t)(uintptr_t)line.writer.thread, SIGALRM), 0);
	for (int i = 1; i < 20; i++)
		read_frame(line.ends[0], text);
	EQ(prdma_heartbeat_stop(&line.writer), 0);
}
