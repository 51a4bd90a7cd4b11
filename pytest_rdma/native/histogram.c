/* Durations in buckets whose width is at most 1/64 of their value: the middle is within 0.8 % of all in them. */
#include "loops.h"

#define SUB_BITS 6
#define SUB (1u << SUB_BITS)

static uint32_t bucket_of(uint64_t ns)
{
	uint32_t octave, bucket;

	if (ns < SUB)
		return (uint32_t)ns;
	octave = 63 - (uint32_t)__builtin_clzll(ns);
	bucket = (octave - SUB_BITS + 1) * SUB + (uint32_t)((ns >> (octave - SUB_BITS)) & (SUB - 1));
	return bucket < PRDMA_BUCKETS ? bucket : PRDMA_BUCKETS - 1;
}

void prdma_histogram_add(struct prdma_histogram *histogram, uint64_t ns)
{
	if (!histogram->count || ns < histogram->min_ns)
		histogram->min_ns = ns;
	if (ns > histogram->max_ns)
		histogram->max_ns = ns;
	histogram->count++;
	histogram->sum_ns += ns;
	histogram->buckets[bucket_of(ns)]++;
}

uint64_t prdma_histogram_value(uint32_t bucket)
{
	uint32_t shift;

	if (bucket < SUB)
		return bucket;
	shift = bucket / SUB - 1;
	return ((uint64_t)(SUB + bucket % SUB) << shift) + ((UINT64_C(1) << shift) >> 1);
}
