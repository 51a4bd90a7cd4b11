"""A host that loses its power in the middle of a run: what follows is blocked, and says why once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.lab

TESTS = """
    import os, signal
    from pathlib import Path
    import pytest

    def machine_of(host):
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if b"qemu-system" in words and f":{host.target.port}-".encode() in words:
                return int(folder.name)
        raise AssertionError("no machine has this port")

    def use(pair):
        pair.local.wait(pair.local.write(length=100))

    def test_before(rdma_pair):
        use(rdma_pair)

    def test_power_off(rdma_pair, rdma_peer):
        os.kill(machine_of(rdma_peer), signal.SIGKILL)
        rdma_peer.run(["true"])

    @pytest.mark.parametrize("number", range(20))
    def test_after(rdma_pair, number):
        use(rdma_pair)
"""


@pytest.fixture
def own_lab(tmp_path: Path) -> dict[str, str]:
    """The environment of a run that boots a lab for itself."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    return {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}


def test_what_follows_a_power_cut_is_blocked_within_seconds(tmp_path: Path, own_lab: dict[str, str]) -> None:
    lines = [line[4:] for line in TESTS.splitlines()]
    (tmp_path / "test_power.py").write_text("\n".join(lines))
    options = ["--rdma-lab", "--rdma-strict", "--junitxml=out.xml", "-p", "no:cacheprovider", "--tb=short"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        env=own_lab,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 6, done.stdout + done.stderr
    assert re.search(r"1 failed, 1 passed, 20 skipped", done.stdout), done.stdout
    (cause,) = re.findall(r"^20 tests blocked: (.*)$", done.stdout, re.M)
    first = r"host(\d) was lost in test_power.py::test_power_off: its stream ended with the connection cut; "
    assert re.match(first + r"a second channel to host\1 does not open: .*; it does not come back", cause), cause
    cases = list(ElementTree.parse(tmp_path / "out.xml").iter("testcase"))
    skips = [case.find("skipped") for case in cases if (case.get("name") or "").startswith("test_after")]
    assert [skip is not None and skip.get("message") for skip in skips] == [f"blocked: {cause}"] * 20
    assert sum(float(case.get("time") or 0) for case in cases) < 60
