"""Print a table of all faults of tests/faults: the bound, the seconds it took, and the first line of the report.

    python benchmarks/fault_table.py [FILE ...]

It uses the lab that is up, or boots one. Bounds are scaled as time-outs are. A fault whose test does not fail,
is late or is explained otherwise than it must be, or whose next test is not green, is marked. The exit code is 1
then, and when anything is left on a host.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))

from guests import watched
from harness import Fault, Ran, Way, all_faults, run_faults

from pytest_rdma.lab import obtain

LINE_CHARACTERS = 200
MARK = "**"


def row(fault: Fault, ran: Ran, scale: float) -> str:
    """Return one row of the table."""
    case, after = ran.cases.get(fault.test), ran.cases.get(f"test_green[{fault.test}]")
    name = f"{fault.file}: {fault.test.removeprefix('test_').replace('_', ' ')}"
    if case is None:
        return f"| {name} | {fault.bound_s * scale:g} | | {MARK}did not run{MARK} |"
    wrong = {
        case.outcome: case.outcome not in ("failure", "error"),
        "late": case.seconds >= fault.bound_s * scale,
        f"cause {case.cause or 'none'}": not re.fullmatch(fault.cause, case.cause),
        "other words": not re.search(fault.words, case.first_line),
        "next test not green": after is None or after.outcome != "passed",
    }
    marks = "".join(f"{MARK}{words}{MARK} " for words, holds in wrong.items() if holds)
    said = case.first_line.replace("|", "\\|")[:LINE_CHARACTERS]
    return f"| {name} | {fault.bound_s * scale:g} | {case.seconds:.1f} | {marks}{said} |"


def main(files: list[str]) -> int:
    faults = [fault for fault in all_faults() if not files or fault.file in files]
    with obtain(lambda line: print(line, file=sys.stderr)) as lab, watched(lab) as guests:
        right = True
        print("| fault | bound, s | took, s | first line |\n|---|---|---|---|")
        for file in dict.fromkeys(fault.file for fault in faults):
            with tempfile.TemporaryDirectory() as folder:
                chosen = [fault for fault in faults if fault.file == file]
                ran = run_faults(Way.to(lab, Path(folder)), Path(folder), chosen)
            rows = [row(fault, ran, lab.timeout_scale) for fault in chosen]
            print("\n".join(rows), flush=True)
            left = guests.left()
            guests.mend()
            print(f"{file}: {ran.seconds:.0f} s; left behind: {', '.join(left) or 'nothing'}", file=sys.stderr)
            right = right and not left and not any(MARK in one for one in rows)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
