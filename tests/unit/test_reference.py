"""What perftest is told for a specification, what is refused, and how its reports are read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_rdma.model import ConnectionAttributes, Opcode, SendWR
from pytest_rdma.reference import (
    TRIES,
    Beside,
    Command,
    Compared,
    NoNumberError,
    NoReferenceError,
    Told,
    command_of,
    parse,
)
from pytest_rdma.traffic import PingPong, Pipeline, RecvDrain, Spec

ATTRIBUTES = ConnectionAttributes(4096, rd_atomic=16)
WRITE = Pipeline(Opcode.RDMA_WRITE, 1024, iterations=2000, depth=128, signal_every=100)

JSON = """{
"test_info": {
"test": "RDMA_Write_BW_Test",
"Number_of_qps": 1,
"ibv_wr_API": "OFF",
"TX_depth": 128,
"CQ_Moderation": 100,
"Mtu": 4096
},
"results": {
"MsgSize": 1024,
"n_iterations": 2000,
"BW_peak": 0.00,
"BW_average": 7.23,
"MsgRate": 0.007406
}
}
"""
HEAD = """
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Number of qps   : 1\t\tTransport type : IB
 ibv_wr* API     : OFF\t\tUsing DDP      : OFF
 TX depth        : 128
 CQ Moderation   : 100
 Mtu             : 4096[B]
 local address: LID 0000 QPN 0x0011 PSN 0xa42507 RKey 0x0002c0 VAddr 0x005635359a9000
---------------------------------------------------------------------------------------
"""
TABLE = f"""{HEAD} #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 1024       2000             0.00               7.23   \t\t     0.007406
---------------------------------------------------------------------------------------
"""
LATENCIES = f"""{HEAD} #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]
 8       500          188.01         27816.70      4115.59  \t       5171.56     \t2746.60
"""


def told(active: Spec, *passive: Spec, qps: int = 1, attributes: ConnectionAttributes = ATTRIBUTES) -> Command:
    return command_of((active,), passive, qps, attributes)


def pairs_of(command: Command) -> dict[str, str]:
    """Return the short options with their values."""
    words = command.words
    return {word: words[at + 1] for at, word in enumerate(words[:-1]) if word.startswith("-") and word != "-N"}


def test_each_parameter_has_its_option() -> None:
    command = told(WRITE, qps=4)
    assert command.tool == "ib_write_bw"
    options = pairs_of(command)
    assert options["-t"] == "128" and options["-Q"] == "100" and options["-q"] == "4" and options["-s"] == "1024"
    assert options["-m"] == "4096" and options["-I"] == "0" and "-N" in command.words
    assert command.iterations(2001) == 501


def test_a_send_brings_its_receives() -> None:
    spec = Pipeline(Opcode.SEND, 64, iterations=1000, batch=16, signal_every=16, inline=True)
    command = told(spec, RecvDrain(64, 1000, depth=512, batch=8))
    options = pairs_of(command)
    assert (command.tool, options["-r"], options["-l"], options["-I"]) == ("ib_send_bw", "512", "16", "64")
    assert "--recv_post_list=8" in command.words
    assert command.iterations(1000) == 1008


def test_reads_are_told_how_many_may_be_open_and_nothing_of_inline() -> None:
    options = pairs_of(told(replace(WRITE, op=Opcode.RDMA_READ)))
    assert options["-o"] == "16" and "-I" not in options


def test_latency_tools_get_no_depth() -> None:
    command = told(PingPong(Opcode.SEND, 8, iterations=500), PingPong(Opcode.SEND, 8, iterations=500, answers=True))
    assert command.tool == "ib_send_lat" and command.latency
    assert "-t" not in command.words and "-N" not in command.words


def test_atomics_have_a_type_in_place_of_a_size() -> None:
    command = told(PingPong(Opcode.ATOMIC_FETCH_AND_ADD, 8, iterations=500))
    assert command.tool == "ib_atomic_lat"
    assert pairs_of(command)["-A"] == "FETCH_AND_ADD" and "-s" not in command.words


def test_equal_ends_run_both_ways() -> None:
    both = (Pipeline(Opcode.SEND, 64, iterations=100), RecvDrain(64, 100, depth=32))
    assert "-b" in command_of(both, both, 1, ATTRIBUTES).words


REFUSED: list[tuple[tuple[Spec, ...], str]] = [
    ((replace(WRITE, buffers=4),), "rotate"),
    ((replace(WRITE, rate_per_s=10.0),), "limits rates"),
    ((replace(WRITE, offset=8),), "head of its buffer"),
    ((replace(WRITE, requests=(SendWR(Opcode.RDMA_WRITE, ()),)),), "mixed requests"),
    ((replace(WRITE, op=Opcode.RDMA_WRITE_WITH_IMM),), "no RDMA_WRITE_WITH_IMM"),
    ((replace(WRITE, batch=16),), "signals in each list of 16, not every 100"),
    ((WRITE, replace(WRITE, size_bytes=2048)), "equal ends only"),
]


@pytest.mark.parametrize(("specs", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_has_no_equal_is_refused_with_the_reason(specs: tuple[Spec, ...], reason: str) -> None:
    with pytest.raises(NoReferenceError, match=reason):
        told(*specs)


def test_json_before_the_table_is_what_counts() -> None:
    assert parse(told(WRITE), 2000, JSON + TABLE.replace("0.007406", "9")) == Told(7406.0, new_posts=False)


@pytest.mark.parametrize("broken", ["", JSON.replace('"', ""), JSON[:200]])
def test_the_table_is_read_where_the_json_is_none(broken: str) -> None:
    assert parse(told(WRITE), 2000, broken + TABLE) == Told(7406.0, new_posts=False)


def test_the_number_with_more_digits_counts() -> None:
    large = told(replace(WRITE, size_bytes=65536))
    text = JSON.replace("1024", "65536").replace("7.23", "27.31").replace("0.007406", "0.000437")
    assert parse(large, 2000, text).value == 27.31 * (1 << 20) / 65536


def test_the_median_latency_is_what_counts() -> None:
    assert parse(told(PingPong(Opcode.RDMA_READ, 8, iterations=500)), 500, LATENCIES).value == 4115590.0


def test_both_ways_is_the_mean_of_both_ends() -> None:
    assert parse(told(WRITE, WRITE), 2000, JSON).value == 3703.0


def test_a_tool_that_changed_what_it_was_asked_is_not_compared() -> None:
    with pytest.raises(NoReferenceError, match="CQ_Moderation 16, not 100"):
        parse(told(WRITE), 2000, JSON.replace('"CQ_Moderation": 100', '"CQ_Moderation": 16'))
    short = JSON.replace('"TX_depth": 128', '"TX_depth": 50').replace('"CQ_Moderation": 100', '"CQ_Moderation": 50')
    assert parse(told(WRITE), 50, short).value == 7406.0


def test_no_number_is_said_with_the_last_words() -> None:
    with pytest.raises(NoReferenceError, match="told no number: Couldn't allocate MR"):
        parse(told(WRITE), 2000, HEAD + "Couldn't allocate MR\n-----\n")


class Tool:
    """Stands for a Reference whose tool tells what is given."""

    def __init__(self, command: Command, *values: Told) -> None:
        self.command = command
        self.told = list(values)

    def run(self, messages: int, *, old_posts: bool = False, timeout_s: float = 60.0) -> Told:
        told = self.told.pop(0)
        if not told.value:
            raise NoNumberError("it told 0")
        return told


def beside_of(spec: Spec, *values: Told) -> Any:
    tool: Any = Tool(told(spec), *values)
    return Beside(lambda: tool)


def test_the_better_of_both_ways_to_post_counts() -> None:
    beside = beside_of(WRITE, Told(100, True), Told(130, True), Told(110, True), Told(120, True))
    beside.run(2000, 1.0)
    beside.run(2000, 1.0)
    found = beside.compared(250.0)
    assert isinstance(found, Compared)
    assert (found.value, found.ratio, found.old_posts, found.runs) == (125, 2.0, True, (130, 120))


def test_a_shorter_latency_is_in_our_favour() -> None:
    beside = beside_of(PingPong(Opcode.RDMA_READ, 8, iterations=500), Told(3000.0, False))
    beside.run(500, 1.0)
    found = beside.compared(2000.0)
    assert (found.ratio, found.cell) == (1.5, "3.0 us")


def test_a_run_that_told_no_number_is_made_again_and_counted() -> None:
    beside = beside_of(WRITE, Told(0, False), Told(100, False))
    beside.run(2000, 1.0)
    found = beside.compared(200.0)
    assert (found.runs, found.ratio, found.told_nothing) == ((100,), 2.0, 1)


def test_a_tool_that_never_tells_a_number_is_no_reference() -> None:
    beside = beside_of(WRITE, *[Told(0, False)] * TRIES)
    beside.run(2000, 1.0)
    assert beside.compared(200.0) == "it told 0"


def test_a_reason_ends_the_runs() -> None:
    def nothing() -> Any:
        raise NoReferenceError("host2 has no ib_send_bw")

    beside = Beside(nothing)
    beside.run(1, 1.0)
    assert beside.compared(1.0) == "host2 has no ib_send_bw"


def test_a_rate_that_its_digits_cannot_tell_is_no_reference() -> None:
    with pytest.raises(NoReferenceError, match="ib_write_bw told 0"):
        parse(told(WRITE), 2000, JSON.replace("0.007406", "0.000000"))
