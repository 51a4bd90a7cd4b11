"""What a test requires is checked on the numbers of ibv_query_device, and the reason says all."""

from __future__ import annotations

import pytest

from pytest_rdma.capabilities import CAPABILITIES, check_names, lacking
from pytest_rdma.errors import RdmaUsageError
from pytest_rdma.model import Access, DeviceInfo, EndpointCaps, PortInfo

PORT = PortInfo(1, "ACTIVE", "Ethernet", 1024, 4096, 0, True, 1 << 31, (0xFFFF,), ())


def device(**limits: int) -> DeviceInfo:
    return DeviceInfo("mlx5_0", "mlx5", "IB", "16.1", "0", 0x15B3, 1, -1, limits, (PORT,))


def lacks(names: tuple[str, ...], minimums: dict[str, int], **limits: int) -> str | None:
    return lacking(names, minimums, "host2", device(**limits), PORT)


def test_what_is_there_lacks_nothing() -> None:
    assert lacks(("atomics", "srq", "roce"), {"max_sge": 4}, atomic_cap=1, max_srq=8, max_sge=4) is None


def test_the_reason_names_host_device_value_source_and_need() -> None:
    assert lacks(("srq",), {}, max_srq=0) == (
        "needs srq: host2 mlx5_0 has max_srq 0 (ibv_query_device), at least 1 is required"
    )
    assert lacks((), {"max_sge": 4}, max_sge=3) == (
        "needs max_sge of 4: host2 mlx5_0 has max_sge 3 (ibv_query_device), at least 4 is required"
    )


def test_a_flag_is_shown_in_hex() -> None:
    reason = lacks(("local_invalidate",), {}, device_cap_flags=0x20)
    assert reason is not None and "device_cap_flags 0x20 " in reason and "IBV_DEVICE_MEM_MGT_EXTENSIONS" in reason
    assert lacks(("local_invalidate",), {}, device_cap_flags=1 << 21) is None


def test_a_link_layer_can_be_required() -> None:
    assert lacks(("infiniband",), {}) == (
        "needs infiniband: host2 mlx5_0/1 has link_layer Ethernet (ibv_query_port), InfiniBand is required"
    )


def test_a_limit_that_a_device_does_not_tell_is_lacking() -> None:
    for name, capability in CAPABILITIES.items():
        reason = lacks((name,), {})
        assert reason is not None and f"does not tell {capability.limit}" in reason


@pytest.mark.parametrize(
    ("names", "minimums"), [(("atomic",), {}), ((), {"max_sges": 1}), ((), {"max_sge": "4"}), ((), {"max_sge": True})]
)
def test_an_unknown_name_or_minimum_is_a_usage_error(names: tuple[str, ...], minimums: dict[str, object]) -> None:
    with pytest.raises(RdmaUsageError):
        check_names(names, minimums)


def test_access_given_as_a_number_is_flags_too() -> None:
    caps = EndpointCaps(access=7, qp_access=99999)  # type: ignore[arg-type]
    assert caps.access is Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ
    assert caps.qp_access is not None
    assert caps.qp_access.text.startswith("LOCAL_WRITE|REMOTE_WRITE|REMOTE_READ|REMOTE_ATOMIC")
