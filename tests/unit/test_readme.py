"""The README's examples are the files that the tests run, and its commands name options that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = README + (ROOT / "docs" / "traffic.md").read_text()
EXAMPLES = re.findall(r"<!-- (docs/examples/\S+) -->\n```python\n(.*?)```", PAGES, re.S)


@pytest.mark.parametrize(("path", "shown"), EXAMPLES, ids=[path for path, _ in EXAMPLES])
def test_example_is_the_file_that_runs(path: str, shown: str) -> None:
    assert shown == (ROOT / path).read_text()


def test_every_python_block_names_its_file() -> None:
    assert PAGES.count("```python") == len(EXAMPLES)


def test_commands_name_options_that_exist(pytestconfig: pytest.Config) -> None:
    for command in re.findall(r"^\$ (pytest .*)$", README, re.M):
        pytestconfig._parser.parse(shlex.split(command)[1:])


def test_linked_files_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
