"""Requests that nobody answers, or that are answered by "not ready": retries run out, within the time that they take.

InfiniBand specification 1.4, volume 1: 9.7.5.1.3 (PSN sequence errors), 9.7.5.2.8 (RNR NAK), 9.7.6.1.3 (transport
timer and retries), 9.9.2 (requester side errors), 10.3.1 (QP states: packets to a QP that is not in RTR or RTS).
A retry count of 7 counts on hardware and means for ever on some providers, so only one test uses it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bounds import kill_and_see_dead
from qp_attributes import rtr_attributes, rts_attributes
from trials import FAILED, FLUSH, NOTHING, PATIENT, QUICK, SUCCESS, Trial, TrialFactory, failed

from pytest_rdma import DeadlineError, EndOutcome, Host, Opcode, Pair, QPState, VerbsError, WCStatus
from pytest_rdma.model import GidRow
from pytest_rdma.rail import RailEnd

LOW_PSN, HIGH_PSN = 0x001000, 0x900000
UNANSWERED = failed(WCStatus.RETRY_EXC_ERR)
DROP_RULES = """table inet pytest_rdma {
  chain drop_roce { type filter hook input priority 0; udp dport 4791 drop; }
}
"""


# -- receives that come late or never


@pytest.mark.combined(rnr_retry=tuple(range(7)))
def test_no_receive_within_the_rnr_retries(trial: TrialFactory, rnr_retry: int) -> None:
    """No receive is ever posted: RNR_RETRY_EXC_ERR here, and the peer stays as it was, whatever the count below 7."""
    made = trial(active={"rnr_retry": rnr_retry}, passive={"min_rnr_timer": 1})
    made.post_receives(made.active)
    made.active.send(made.message(), made.message())
    made.expect(f"no-receive.{rnr_retry}", failed(WCStatus.RNR_RETRY_EXC_ERR), NOTHING)


def test_late_receive_is_waited_for_with_rnr_retry_7(trial: TrialFactory) -> None:
    """Verify: nothing completes while there is no receive, and everything once it is there."""
    made = trial(active={"rnr_retry": 7}, passive={"min_rnr_timer": 1})
    made.active.send(made.message())
    assert made.requester.poll(1, timeout_s=0.2, exactly=False) == []
    made.post_receives(made.passive)
    made.expect("late-receive", NOTHING.with_(sends=(SUCCESS,)), NOTHING.with_(recvs=(SUCCESS,)), untouched=False)


# -- peers that do not answer


def test_wrong_destination_qp_number(trial: TrialFactory) -> None:
    """No QP of that number is there, so the peer's stack drops what comes."""
    made = trial(passive={"qp_num": 0xFFFFF0}, active=QUICK)
    made.break_with(made.message())
    made.expect("no-answer.wrong-qpn", UNANSWERED)


@pytest.mark.combined(ahead=(1, 100), operation=("send", "write"))
def test_psn_ahead(trial: TrialFactory, ahead: int, operation: str) -> None:
    """The peer expects an earlier PSN: a sequence error, NAKed until the retries run out; nothing arrives."""
    made = psn_trial(trial, LOW_PSN, LOW_PSN - ahead)
    made.break_with(made.message() if operation == "send" else made.one_sided(Opcode.RDMA_WRITE))
    made.expect(f"psn-ahead.{operation}", UNANSWERED)


@pytest.mark.combined(half=("low", "high"), operation=("send", "write"))
def test_psn_behind_by_as_much_as_is_posted(trial: TrialFactory, half: str, operation: str) -> None:
    """The peer takes both requests for duplicates and acknowledges them: success here, and yet nothing arrives."""
    first = LOW_PSN if half == "low" else HIGH_PSN
    made = psn_trial(trial, first, first + 2)
    made.break_with(made.message() if operation == "send" else made.one_sided(Opcode.RDMA_WRITE))
    made.expect(f"psn-behind.near.{half}", NOTHING.with_(sends=(SUCCESS, SUCCESS)))


@pytest.mark.combined(half=("low", "high"), operation=("send", "write"))
def test_psn_far_behind(trial: TrialFactory, half: str, operation: str) -> None:
    """The peer acknowledges a PSN that was never sent, which is no answer."""
    first = LOW_PSN if half == "low" else HIGH_PSN
    made = psn_trial(trial, first, first + 100)
    made.break_with(made.message() if operation == "send" else made.one_sided(Opcode.RDMA_WRITE))
    made.expect(f"psn-behind.far.{half}", UNANSWERED)


def psn_trial(trial: TrialFactory, first: int, expected: int) -> Trial:
    """The active end begins with the PSN `first`, and the peer expects another."""
    made = trial(active={"psn": expected})
    connect_by_hand(made, sq_psn=first)
    return made


def connect_by_hand(trial: Trial, *, sq_psn: int | None = None, **address: Any) -> None:
    """Connect the active end once more, with finite retries and with what the peer was not told."""
    active = trial.requester
    attributes = dataclasses.replace(trial.pair.attributes, **PATIENT)
    active.reset()
    active.modify(QPState.RTR, **{**rtr_attributes(active, trial.responder.record, attributes), **address})
    rts = rts_attributes(active.record, attributes)
    active.modify(QPState.RTS, **(rts if sq_psn is None else {**rts, "sq_psn": sq_psn}))


STATES = {
    "reset": (QPState.RESET, NOTHING.with_(state=QPState.RESET)),
    "in-ERR": (QPState.ERR, FAILED),
}


@pytest.mark.combined(state=tuple(STATES))
def test_peer_qp_in_another_state(trial: TrialFactory, state: str) -> None:
    """A QP in RESET or ERR drops what comes for it."""
    made = trial(active=QUICK)
    made.post_receives()
    made.responder.modify(STATES[state][0])
    made.active.send(made.message(), made.message())
    made.expect(f"no-answer.peer-{state}", UNANSWERED, STATES[state][1])


def test_peer_qp_destroyed(trial: TrialFactory) -> None:
    made = trial(active=QUICK)
    made.post_receives()
    made.responder.close()
    made.active.send(made.message(), made.message())
    made.expect("no-answer.peer-destroyed", UNANSWERED, EndOutcome(state=None))


def test_peer_process_killed(trial: TrialFactory, rdma_local: Host, rdma_peer: Host) -> None:
    """The kernel destroys what the process had; the agent of the other tests goes on."""
    far = rdma_peer if trial.active_end == "local" else rdma_local
    spawned = far.spawn()

    def with_the_spawned(beside: Pair) -> Pair:
        hosts = (beside.local.host, spawned) if far is rdma_peer else (spawned, beside.peer.host)
        return Pair.create(*hosts, beside.rail)

    try:
        made = trial(active=PATIENT, pair=with_the_spawned)
        made.post_receives()
        made.active.send(made.message())
        assert made.requester.wait(1)[0].status == SUCCESS
        assert far.call(kill_and_see_dead, spawned.info.pid, 10.0)
        made.responder.mark_closed()
        made.active.completions.clear()
        made.active.send(made.message(), made.message())
        killed = made.pair
        made.expect("no-answer.peer-killed", UNANSWERED, EndOutcome(state=None))
        killed.close()
    finally:
        spawned.close()


# -- networks that do not carry it


@contextmanager
def roce_dropped_on(host: Host) -> Iterator[None]:
    """Drop RoCE v2 at the host's input; undone whatever happens."""
    done = host.run(["nft", "-f", "-"], input=DROP_RULES.encode())
    assert done.returncode == 0, done.stderr
    try:
        yield
    finally:
        host.run(["nft", "delete", "table", "inet", "pytest_rdma"])


def test_udp_port_4791_dropped(trial: TrialFactory) -> None:
    made = trial(active=QUICK)
    need_a_network(made.requester.host, made.responder.host, "nft")
    made.post_receives()
    with roce_dropped_on(made.responder.host):
        made.active.send(made.message(), made.message())
        made.active.observe(UNANSWERED)
    made.expect("no-answer.udp-4791-dropped", UNANSWERED)


def need_a_network(other: Host, changed: Host, program: str) -> None:
    """Skip unless the ends are on two hosts, and `program` may change the network of the second."""
    if other.info.hostname == changed.info.hostname:
        pytest.skip("both ends are on one host: what is looped back does not pass the network")
    if changed.info.uid != 0:
        pytest.skip(f"the agent on {changed.name} is not root (uid {changed.info.uid}): {program} needs root there")


def test_gid_of_another_family(trial: TrialFactory) -> None:
    """The passive end tells a GID that the active end's row cannot reach: RTR is refused, and both GIDs are named."""
    made = trial(connect=False)
    own, other = made.here.gid, other_row(made.there)
    assert own is not None
    with pytest.raises(VerbsError, match=re.escape(str(other.address))) as refused:
        made.connect(passive={"gid": other.gid})
    assert str(own.address) in str(refused.value)
    assert made.requester.state == QPState.INIT
    made.rebuild()


def test_packets_from_another_row(trial: TrialFactory) -> None:
    """The active end sends over another row than the peer was told of: the peer's QP takes nothing from there."""
    made = trial(connect=False)
    here, there = other_row(made.here), other_row(made.there)
    made.connect()
    connect_by_hand(made, dgid=there.gid, sgid_index=here.index)
    made.break_with(made.message())
    # a QP of rxe keeps the route of its first packet beyond RESET, so this one is of no more use over the first row
    made.expect("no-answer.another-gid-row", UNANSWERED, anew=True)


def other_row(end: RailEnd) -> GidRow:
    """A row of the port whose address is of another family than the chosen row's."""
    if end.gid is None:
        pytest.skip(f"{end.place} has no GID rows in use")
    rows = [
        row
        for row in end.port.gids
        if row.type == end.gid.type and row.address.version != end.gid.address.version and not row.address.is_link_local
    ]
    if not rows:
        pytest.skip(f"{end.place} has rows of one address family only")
    return rows[0]


def test_mtu_larger_than_the_path(trial: TrialFactory) -> None:
    """The active end's netdev carries less than the path MTU that both ends agreed on."""
    made = trial(active=QUICK)
    need_a_network(made.responder.host, made.requester.host, "ip")
    row, mtu = made.here.gid, made.pair.attributes.mtu
    assert row is not None
    assert row.netdev is not None
    made.post_receives()
    with netdev_mtu(made.requester.host, row.netdev, mtu // 2):
        made.active.send(made.message(made.source(length=mtu)), made.message())
        made.active.observe(UNANSWERED)
    made.expect("mtu-larger-than-path", UNANSWERED)


@contextmanager
def netdev_mtu(host: Host, netdev: str, mtu: int) -> Iterator[None]:
    """Give the netdev another MTU; undone whatever happens."""
    before = host.run(["cat", f"/sys/class/net/{netdev}/mtu"]).stdout.decode().strip()
    try:
        assert host.run(["ip", "link", "set", "dev", netdev, "mtu", str(mtu)]).returncode == 0
        yield
    finally:
        host.run(["ip", "link", "set", "dev", netdev, "mtu", before])


def test_endless_retries_end_with_our_deadline(trial: TrialFactory) -> None:
    """With retry_cnt 7 and nobody there a provider may retry for ever: our deadline ends the wait and says so."""
    made = trial(passive={"qp_num": 0xFFFFF0}, active={"ack_timeout": 14, "retry_count": 7})
    made.active.send(made.message())
    with pytest.raises(DeadlineError, match=r"wr_id 0x1 did not complete .* is RTS, outstanding: 1 sends: 0x1"):
        made.requester.wait(1, timeout_s=0.1)
    made.requester.to_error()
    made.expect("endless-retries", NOTHING.with_(sends=(FLUSH,), state=QPState.ERR))
