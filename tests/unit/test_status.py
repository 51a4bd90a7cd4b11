"""Work completion statuses in messages."""

from __future__ import annotations

import pytest

from pytest_rdma.status import MEANINGS, WCStatus, describe, name_of


@pytest.mark.parametrize("status", list(WCStatus))
def test_each_status_is_described_in_one_line_with_name_and_number(status: WCStatus) -> None:
    text = describe(status)
    assert text.startswith(f"{status.name} ({status.value}): ")
    assert "\n" not in text
    assert status in MEANINGS


def test_a_failed_transport_names_its_likely_causes() -> None:
    assert "UDP port 4791" in describe(WCStatus.RETRY_EXC_ERR)


def test_an_unknown_number_is_shown_as_it_is() -> None:
    assert describe(99) == name_of(99) == "unknown status (99)"
