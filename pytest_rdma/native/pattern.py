"""The seeded pattern in plain Python: what `prdma_fill` writes (see pattern.c)."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def pattern(seed: int, length: int, start: int = 0) -> bytes:
    """Return `length` bytes of the pattern from its offset `start`; the seed counts modulo 2**64."""
    key = _mix(seed & _MASK)
    blocks = range(start // 8, (start + length + 7) // 8)
    text = b"".join(_mix((key + index) & _MASK).to_bytes(8, "little") for index in blocks)
    return text[start % 8 : start % 8 + length]
