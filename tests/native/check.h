/* A test is TEST(name) { ... }; the program runs those that its arguments name. Each is one test of pytest's, too. */
#ifndef CHECK_H
#define CHECK_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct test {
	const char *name;
	void (*run)(void);
	struct test *next;
};

extern struct test *tests;

#define TEST(name_)                                                                                                    \
	static void name_(void);                                                                                       \
	__attribute__((constructor)) static void register_##name_(void)                                                \
	{                                                                                                              \
		static struct test entry = {#name_, name_, NULL};                                                      \
		entry.next = tests;                                                                                    \
		tests = &entry;                                                                                        \
	}                                                                                                              \
	static void name_(void)

#define EQ(a_, b_)                                                                                                     \
	do {                                                                                                           \
		int64_t left_ = (int64_t)(a_), right_ = (int64_t)(b_);                                                 \
		if (left_ != right_) {                                                                                 \
			fprintf(stderr, "%s:%d: %s is %" PRId64 ", not %" PRId64 "\n", __FILE__, __LINE__, #a_, left_, \
				right_);                                                                               \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

#define OK(condition_) EQ(!!(condition_), 1)

static inline int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static inline int64_t in_ms(int64_t ms)
{
	return now_ns() + ms * 1000000;
}

#endif
