/* The seeded pattern of buffers: every byte depends on its offset, so moved, torn and stale data all show. */
#include "prdma.h"

#include <endian.h>
#include <string.h>

static uint64_t mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

/* The block in memory order. The seed is mixed first: neighbouring seeds must not give shifted copies of each other. */
static uint64_t block(uint64_t key, uint64_t index)
{
	return htole64(mix(key + index));
}

/* How many of `length` bytes from pattern offset `at` lie in its block of 8. */
static uint64_t span(uint64_t at, uint64_t length)
{
	uint64_t left = 8 - at % 8;

	return left < length ? left : length;
}

static const uint8_t *bytes_at(const uint64_t *value, uint64_t at)
{
	return (const uint8_t *)value + at % 8;
}

void prdma_fill(uint8_t *addr, uint64_t length, uint64_t seed, uint64_t start)
{
	uint64_t key = mix(seed), n;

	for (; length; addr += n, start += n, length -= n) {
		uint64_t value = block(key, start / 8);

		n = span(start, length);
		if (n == 8)
			memcpy(addr, &value, 8);
		else
			memcpy(addr, bytes_at(&value, start), n);
	}
}

static uint64_t first_difference(const uint8_t *a, const uint8_t *b)
{
	uint64_t i = 0;

	while (a[i] == b[i])
		i++;
	return i;
}

static int same(const uint8_t *a, const uint8_t *b, uint64_t n)
{
	return n == 8 ? !memcmp(a, b, 8) : !memcmp(a, b, n);
}

int prdma_verify(const uint8_t *addr, uint64_t length, uint64_t seed, uint64_t start, uint64_t *first_bad)
{
	uint64_t key = mix(seed), n;

	for (uint64_t done = 0; done < length; done += n) {
		uint64_t value = block(key, (start + done) / 8);
		const uint8_t *expected = bytes_at(&value, start + done);

		n = span(start + done, length - done);
		if (!same(addr + done, expected, n)) {
			*first_bad = done + first_difference(addr + done, expected);
			return 1;
		}
	}
	return 0;
}

int prdma_find_not(const uint8_t *addr, uint64_t length, uint8_t byte, uint64_t *first_bad)
{
	uint64_t at = 0;

	if (!length || (addr[0] == byte && !memcmp(addr, addr + 1, length - 1)))
		return 0;
	while (addr[at] == byte)
		at++;
	*first_bad = at;
	return 1;
}
