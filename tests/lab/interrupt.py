"""Runs a command, sends it SIGINT once there is a file `ready`, and prints as JSON when, how and with what it ended.

python interrupt.py command ...
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 120.0


def main(argv: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is started from here must not inherit it ignored
    for name in ("ready", "facts"):
        Path(name).unlink(missing_ok=True)
    with open("output", "wb") as output:
        running = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT)
        end = time.monotonic() + LIMIT_S
        while not Path("ready").exists() and running.poll() is None and time.monotonic() < end:
            time.sleep(0.01)  # what another process does can only be seen
        began = time.monotonic()
        running.send_signal(signal.SIGINT)
        try:
            code = running.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            running.kill()
            code = running.wait()
    took_s = time.monotonic() - began
    facts = json.loads(Path("facts").read_text()) if Path("facts").exists() else {}
    text = Path("output").read_text(errors="replace")
    print(json.dumps({"began": began, "took_s": took_s, "code": code, "output": text, **facts}))


if __name__ == "__main__":
    main(sys.argv[1:])
