"""Defects of a C program that does one RDMA Write which only a program shows, by a small pair of programs of our own.

Each test names the defects of SEEDS.md (D1 to D27) that it provokes; README.md lists them all. The program is right but
for what `--defect` takes away from it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator

import pytest
from records import send_part_of_a_record
from toolchain import Refused, compiled
from write_programs import MESSAGE, WritePrograms, read_match

from pytest_rdma import DeadlineError, Host, Pair

PROGRAM_S = 15
IN_VAIN_S = 4
HANG_S = 0.5
RECORD_BYTES = 48
ACCESS_STATUS = r"status (9|10):"


@pytest.fixture
def programs(rdma_pairs: Callable[..., Pair]) -> Iterator[WritePrograms]:
    """The program on both hosts; what is still running after the test is killed."""
    pair = rdma_pairs(connect=False)
    if pair.local.record.link_layer != "Ethernet":
        pytest.skip("the programs address each other by the IP addresses of GID rows: InfiniBand has none")
    made = WritePrograms(pair, PROGRAM_S)
    yield made
    made.close()


def test_program_without_a_defect_delivers_and_both_ends_say_so(programs: WritePrograms) -> None:
    server, client = programs.run_both()
    assert (server.code, client.code) == (0, 0), server.complained + client.complained
    assert f"received {MESSAGE}\n" in server.said


# -- the chain that a user of the seed's program meets, in its order


def test_d1_unknown_mask_name_is_a_build_error_that_is_shown(rdma_peer: Host) -> None:
    with pytest.raises(Refused, match="IBV_QP_MTU"):
        compiled(rdma_peer, "write_once", "-fsyntax-only", "-DDEFECT_MASK_NAME")


def test_d5_d11_d12_d8_d10_unchecked_program_hangs_at_both_ends(programs: WritePrograms) -> None:
    """RTR fails without an address vector, so RTS fails, so the post is refused, and nobody has looked at any of it.

    Verify: both run on after their peers have exchanged all that they ever will; our deadline ends each wait.
    """
    defects = ("no-av", "unchecked", "no-deadline")
    server, port = programs.start_server("server-polls", *defects)
    client = programs.start_client(port, *defects)
    for program in (server, client):
        read_match(program, r"peer qp (0x[0-9a-f]+)")
        with pytest.raises(DeadlineError, match="has not ended"):
            program.wait(timeout_s=HANG_S)
        program.kill()
        assert program.wait().returncode == -signal.SIGKILL


def test_d5_checked_program_says_what_is_refused(programs: WritePrograms) -> None:
    server, client = programs.run_both(("no-av",), ("no-av",))
    for end in (server, client):
        assert end.code == 1
        assert "cannot move the QP to RTR: Invalid argument" in end.complained


@pytest.mark.parametrize("defect", ["qp-access", "mr-access", "low-address"])
def test_d4_d3_d2_server_without_the_right_or_the_address_fails_the_client(
    programs: WritePrograms, defect: str
) -> None:
    """Verify: the client has a status of remote access, and the server learns that nothing was written."""
    server, client = programs.run_both((defect,))
    assert client.code == 1
    assert re.search(ACCESS_STATUS, client.complained), client.complained
    assert server.code == 1
    assert "the word that the client is done ended after 0 of 1 bytes" in server.complained


def test_d8_server_that_polls_for_a_plain_write_waits_in_vain(programs: WritePrograms) -> None:
    """The message is there all the same: the client is done, and the server's poll ends at its deadline."""
    programs.timeout_s = IN_VAIN_S
    server, port = programs.start_server("server-polls")
    client = programs.start_client(port)
    ended = server.wait()
    assert ended.returncode == 1
    assert f"no completion within {IN_VAIN_S} s" in ended.stderr.decode()
    assert "least_ns" in client.wait().stdout.decode()


# -- results that nobody looks at


def test_d2_address_in_32_bits_is_flagged_by_the_compiler(rdma_peer: Host) -> None:
    with pytest.raises(Refused, match=r"conversion from .* to .address. "):
        compiled(rdma_peer, "write_once", "-fsyntax-only", "-Wconversion", "-DDEFECT_ADDRESS_TYPE")


def test_d11_d13_empty_device_list_is_a_crash_unless_it_is_looked_at(programs: WritePrograms) -> None:
    where = ("client", programs.address, "1", MESSAGE)
    crashed = programs.run_alone(*where, defects=("device-unchecked",))
    assert crashed.code == -signal.SIGSEGV
    named = programs.run_alone(*where, options=("--device", "nosuch0"))
    assert (named.code, "no device nosuch0" in named.complained) == (1, True)


def test_d15_client_before_its_server_is_told_so(programs: WritePrograms) -> None:
    """Steps: take a port that a server had and dial it again. Verify: the client says that nobody is there."""
    server, port = programs.start_server()
    server.kill()
    server.wait()
    early = programs.run_alone("client", programs.address, port, MESSAGE)
    assert early.code == 1
    assert "cannot connect: Connection refused" in early.complained


def test_d16_record_that_breaks_off_is_no_record(programs: WritePrograms) -> None:
    """Steps: send 5 bytes of the record and close. Verify: the count of bytes; a single recv goes on with garbage."""
    host = programs.pair.local.host
    server, port = programs.start_server()
    host.call(send_part_of_a_record, programs.address, int(port), b"PRW1\0")
    ended = server.wait()
    assert ended.returncode == 1
    assert f"the record ended after 5 of {RECORD_BYTES} bytes" in ended.stderr.decode()
    careless, port = programs.start_server("single-recv")
    host.call(send_part_of_a_record, programs.address, int(port), b"PRW1\0")
    assert "peer qp 0" in careless.wait().stdout.decode()


def test_d17_name_in_place_of_an_address_is_refused(programs: WritePrograms) -> None:
    ended = programs.run_alone("client", "host2.invalid", "1", MESSAGE)
    assert ended.code == 1
    assert "host2.invalid is no IP address" in ended.complained


def test_d18_port_in_use_is_said_or_the_server_listens_where_nobody_looks(programs: WritePrograms) -> None:
    _, port = programs.start_server()
    with pytest.raises(AssertionError, match="cannot bind: Address already in use"):
        programs.start_server(options=("--port", port))
    _, other = programs.start_server("unchecked", options=("--port", port))
    assert other != port


def test_d20_server_that_compares_nothing_passes_on_a_wrong_message(programs: WritePrograms) -> None:
    server, client = programs.run_both(message="something else")
    assert (server.code, client.code) == (1, 0)
    assert "the buffer does not hold the message: 'something else'" in server.complained
    careless, _ = programs.run_both(("no-check",), message="something else")
    assert careless.code == 0


def test_d21_client_that_leaves_early_is_missed_by_the_server(programs: WritePrograms) -> None:
    server, client = programs.run_both(client=("leave-early",))
    assert (server.code, client.code) == (1, 0)
    assert "the word that the client is done ended after 0 of 1 bytes" in server.complained


def test_d23_sleep_in_the_poll_loop_is_a_floor_under_the_latency(programs: WritePrograms) -> None:
    """Verify: with a sleep of 20 ms no write is quicker than that; without, the quickest of many is.

    Between busy guests the quickest of 200 took more than the 1 ms that the seed sleeps.
    """
    least = []
    for defects, repeat in ((("sleeping-poll",), "20"), ((), "200")):
        _, client = programs.run_both(client=defects, options=("--repeat", repeat))
        assert client.code == 0, client.complained
        least.append(int(client.said.split("least_ns ")[1]))
    assert least[0] >= 20_000_000 > least[1]


def test_d26_word_that_is_neither_role_is_a_usage_error(programs: WritePrograms) -> None:
    ended = programs.run_alone("sever", programs.address, MESSAGE)
    assert ended.code == 2
    assert "must be server or client" in ended.complained
