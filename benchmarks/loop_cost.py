"""Instructions a message of the flow over a provider that only walks the list and writes completions.

`valgrind --tool=callgrind` counts a run of N messages and one of 2N; their difference is free of start and end. The
helper is compiled as it is for use (-O2), send queue depth 128. Run: python benchmarks/loop_cost.py
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pytest_rdma.native import toolchain

HERE = Path(__file__).parent

NATIVE = Path(toolchain.__file__).parent
MESSAGES = 12_800
CASES = ((1, 100, 80.0), (64, 64, 14.0), (1, 1, None), (16, 16, None))
VARIANTS = (
    ("provider alone", "p"),
    ("loop and provider", "l"),
    ("with the time series", "lt"),
    ("with post and poll split", "ls"),
)


def build(directory: Path) -> Path:
    program = directory / "loop-cost"
    sources = [str(NATIVE / name) for name in toolchain.C_FILES]
    flags = [flag for flag in toolchain.FLAGS if flag != "-fPIC"]
    argv = ["cc", *flags, "-fPIC", f"-I{NATIVE}", str(HERE / "loop_cost_driver.c"), *sources, "-o", str(program)]
    subprocess.run([*argv, "-pthread"], check=True)
    return program


def instructions(program: Path, variant: str, messages: int, batch: int, signal_every: int) -> int:
    argv = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={program.parent / 'out'}", str(program), variant]
    argv += [str(messages), str(batch), str(signal_every)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found is not None, done.stderr
    return int(found[1])


def main() -> int:
    if shutil.which("valgrind") is None:
        print("valgrind is missing: apt-get install valgrind", file=sys.stderr)
        return 2
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        program = build(Path(scratch))
        for batch, signal_every, limit in CASES:
            print(f"batch {batch}, signal every {signal_every}, depth 128: instructions a message")
            for name, variant in VARIANTS:
                once = instructions(program, variant, MESSAGES, batch, signal_every)
                twice = instructions(program, variant, 2 * MESSAGES, batch, signal_every)
                each = (twice - once) / MESSAGES
                judged = limit is not None and variant == "lt"
                verdict = f"  (limit {limit:g}: {'kept' if each <= limit else 'MISSED'})" if judged and limit else ""
                failed |= bool(judged and limit and each > limit)
                print(f"  {name:26} {each:7.2f}{verdict}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
