#include "check.h"
#include "prdma.h"

#include <string.h>

#define BYTES 300

static uint8_t whole[BYTES], part[BYTES + 2];

TEST(a_part_of_the_pattern_is_the_pattern_s_part)
{
	prdma_fill(whole, BYTES, 42, 0);
	for (uint64_t start = 0; start < 20; start++)
		for (uint64_t length = 0; length < 40; length++) {
			memset(part, 0xee, sizeof(part));
			prdma_fill(part + 1, length, 42, start);
			OK(!memcmp(part + 1, whole + start, length));
			EQ(part[0], 0xee);
			EQ(part[length + 1], 0xee);
		}
}

TEST(verify_names_the_first_wrong_byte)
{
	uint64_t bad = 0;

	prdma_fill(whole, BYTES, 7, 3);
	EQ(prdma_verify(whole, BYTES, 7, 3, &bad), 0);
	for (uint64_t i = 0; i < BYTES; i++) {
		whole[i] ^= 0x10;
		EQ(prdma_verify(whole, BYTES, 7, 3, &bad), 1);
		EQ(bad, i);
		EQ(prdma_verify(whole, i, 7, 3, &bad), 0);
		EQ(prdma_verify(whole + i + 1, BYTES - i - 1, 7, 3 + i + 1, &bad), 0);
		whole[i] ^= 0x10;
	}
}

TEST(another_seed_or_offset_does_not_verify)
{
	uint64_t bad;

	prdma_fill(whole, BYTES, 7, 0);
	EQ(prdma_verify(whole, BYTES, 8, 0, &bad), 1);
	EQ(prdma_verify(whole, BYTES, 6, 8, &bad), 1); /* neighbouring seeds are not shifted copies */
	EQ(prdma_verify(whole, BYTES, 8, 8, &bad), 1);
	EQ(prdma_verify(whole, BYTES, 7, 8, &bad), 1);
	EQ(prdma_verify(whole, BYTES, 7, 1, &bad), 1);
}

TEST(the_pattern_is_the_same_on_every_machine)
{
	const uint8_t expected[] = {0x1e, 0x61, 0x39, 0x74, 0x08, 0xab, 0x41, 0x5e,
				    0x03, 0xae, 0x17, 0x32, 0x95, 0xfd, 0xd6, 0x86};

	prdma_fill(whole, sizeof(expected), 1, 0);
	OK(!memcmp(whole, expected, sizeof(expected)));
}

TEST(find_not_names_the_first_other_byte)
{
	uint64_t bad = 99;

	memset(whole, 0xa5, BYTES);
	EQ(prdma_find_not(whole, BYTES, 0xa5, &bad), 0);
	EQ(prdma_find_not(whole, 0, 0, &bad), 0);
	EQ(bad, 99);
	for (uint64_t i = 0; i < BYTES; i += 7) {
		whole[i] = 0xa4;
		EQ(prdma_find_not(whole, BYTES, 0xa5, &bad), 1);
		EQ(bad, i);
		whole[i] = 0xa5;
	}
	EQ(prdma_find_not(whole, BYTES, 0xa4, &bad), 1);
	EQ(bad, 0);
}
