"""The recipes for CI and for nightly runs: their files are valid, and their commands those of README and docs."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CI = ROOT / "docs" / "examples" / "ci"
UNITS = sorted((ROOT / "docs" / "examples" / "nightly").glob("rdma-nightly.*"))
DOCUMENTED = (ROOT / "README.md").read_text() + (ROOT / "docs" / "lab.md").read_text()
INSTALLING = ("apt-get update", "apt-get install", "python3 -m venv", "$(.venv/bin/python -m pytest_rdma.lab)")


def loaded(name: str) -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((CI / name).read_text())


def github_commands() -> list[str]:
    steps = loaded("github-actions.yml")["jobs"]["soft-roce"]["steps"]
    return [step["run"] for step in steps if "run" in step]


def gitlab_commands() -> list[str]:
    job = loaded("gitlab-ci.yml")["soft-roce"]
    return [*job["before_script"], *job["script"]]


def test_both_services_run_the_same() -> None:
    assert github_commands() == gitlab_commands()


def test_commands_are_documented(pytestconfig: pytest.Config) -> None:
    for command in github_commands():
        words = shlex.split(command.replace(".venv/bin/", ""))
        if words[0] == "pytest":
            check_options(pytestconfig, words[1:])
        elif command.startswith(".venv/bin/"):
            assert " ".join(words) in DOCUMENTED.replace("'", "")
        else:
            assert command.startswith(INSTALLING)


def check_options(config: pytest.Config, words: list[str]) -> None:
    _, unknown = config._parser.parse_known_and_unknown_args(words)
    assert unknown == []


def test_services_keep_the_image_and_the_report_also_of_a_failure() -> None:
    github = loaded("github-actions.yml")["jobs"]["soft-roce"]["steps"]
    upload = next(step for step in github if step.get("uses", "").startswith("actions/upload-artifact"))
    assert upload["if"] == "always()"
    assert upload["with"]["path"].split() == ["rdma.xml", "rdma-artifacts"]
    gitlab = loaded("gitlab-ci.yml")["soft-roce"]
    assert gitlab["artifacts"]["when"] == "always"
    assert gitlab["cache"]["paths"] == [".cache/pytest-rdma"]


def test_units_are_taken_by_systemd() -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here")
    done = subprocess.run([analyze, "verify", *map(str, UNITS)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_nightly_command_names_options_that_exist(pytestconfig: pytest.Config) -> None:
    service = UNITS[0].read_text().replace("\\\n", " ").replace("%%", "%")
    command = re.search(r"-c 'exec \S+/pytest (.*)'$", service, re.MULTILINE)
    assert command is not None
    check_options(pytestconfig, shlex.split(command[1]))


def test_pages_link_to_files_that_exist() -> None:
    for page in ("ci.md", "nightly.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "docs" / page).read_text()):
            assert (ROOT / "docs" / target).exists(), target


def test_no_recipe_names_a_registry() -> None:
    for path in (*CI.iterdir(), *UNITS):
        assert "://" not in path.read_text()
