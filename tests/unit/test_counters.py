"""Limits on counters: one name for what each driver calls otherwise, and words for what is over its limit."""

from __future__ import annotations

import pytest

from pytest_rdma.counters import check_limits, counters_of, exceeded
from pytest_rdma.errors import RdmaUsageError

RXE = ("sent_pkts", "out_of_seq_request", "rcvd_rnr_err", "rcvd_seq_err", "completer_retry_err")
MLX5 = ("out_of_sequence", "packet_seq_err", "rnr_nak_retry_err", "local_ack_timeout_err", "out_of_buffer")


@pytest.mark.parametrize("name", ["rnr_naks", "rcvd_rnr_err", "rnr_nak_retry_err"])
def test_a_name_of_any_driver_means_its_kind(name: str) -> None:
    assert counters_of(name, RXE) == ("rcvd_rnr_err",)
    assert counters_of(name, MLX5) == ("rnr_nak_retry_err",)


def test_other_names_mean_themselves() -> None:
    assert counters_of("sent_pkts", RXE) == ("sent_pkts",)
    assert counters_of("sent_pkts", MLX5) == ()


def test_a_counter_of_one_driver_needs_only_be_at_one_end() -> None:
    check_limits({"sent_pkts": 9, "rnr_naks": 0}, {"host1 rxe0/1": RXE, "host2 mlx5_0/1": MLX5})


@pytest.mark.parametrize(
    ("name", "there", "message"),
    [
        (
            "rnr_nacks",
            {"host1 rxe0/1": RXE},
            "host1 rxe0/1 counts no 'rnr_nacks'; it counts retransmissions, .*sent_pkts",
        ),
        ("drops", {"host2 mlx5_0/1": MLX5, "host1 rxe0/1": RXE}, "host1 rxe0/1 counts no 'drops'"),
        ("rnr_naks", {"host1 siw0/1": ()}, "it counts none"),
    ],
)
def test_a_name_that_means_nothing_is_refused_with_those_that_there_are(
    name: str, there: dict[str, tuple[str, ...]], message: str
) -> None:
    with pytest.raises(RdmaUsageError, match=message):
        check_limits({name: 0}, there)


def test_what_is_over_its_limit_is_told_with_place_growth_and_limit() -> None:
    counted = {"rcvd_rnr_err": 3, "sent_pkts": 12}
    assert exceeded({"rnr_naks": 3, "sent_pkts": 100}, counted, "host1 rxe0/1") == []
    assert exceeded({"rnr_naks": 2, "sent_pkts": 11}, counted, "host1 rxe0/1") == [
        "rcvd_rnr_err (rnr_naks) of host1 rxe0/1 grew by 3, and 2 is allowed",
        "sent_pkts of host1 rxe0/1 grew by 12, and 11 is allowed",
    ]
