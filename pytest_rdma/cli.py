"""The `pytest-rdma` command: `pytest-rdma lab build | up | status | ssh N | down`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

from pytest_rdma.errors import RdmaError

IDLE_LIMIT_S = 30 * 60.0


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of `lab status | head -1` has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except RdmaError as error:
        print(f"pytest-rdma: {error}", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pytest-rdma", description=__doc__)
    lab = parser.add_subparsers(required=True, metavar="lab").add_parser("lab", help="the two Soft-RoCE guests")
    commands = lab.add_subparsers(required=True, metavar="build|up|status|ssh|down")
    build = commands.add_parser("build", help="build the guests' image if today's is not in the cache")
    build.add_argument("--mirror", help="the Debian mirror to use instead of this machine's own apt sources")
    build.set_defaults(run=_build)
    up = commands.add_parser("up", help="boot the guests and leave them running until `down` or the idle limit")
    up.add_argument("--mirror", help=argparse.SUPPRESS)
    up.add_argument("--idle-limit", type=float, default=IDLE_LIMIT_S, metavar="SECONDS", help="default: 1800")
    up.set_defaults(run=_up)
    commands.add_parser("status", help="say whether a lab is up, and how to reach it").set_defaults(run=_status)
    ssh = commands.add_parser("ssh", help="log in to host N, or run a command there")
    ssh.add_argument("number", type=int, choices=(1, 2))
    ssh.add_argument("command", nargs=argparse.REMAINDER)
    ssh.set_defaults(run=_ssh)
    commands.add_parser("down", help="take the lab down and wait until it is gone").set_defaults(run=_down)
    return parser


def _note(line: str) -> None:
    print(line, flush=True)


def _build(options: argparse.Namespace) -> int:
    from pytest_rdma.lab.image import ensure_image

    print(f"image: {ensure_image(_note, options.mirror).directory}")
    return 0


def _up(options: argparse.Namespace) -> int:
    from pytest_rdma.lab import client
    from pytest_rdma.lab.image import ensure_image
    from pytest_rdma.lab.requirements import require

    require("boot")
    connection, started = client.start_up(ensure_image(_note, options.mirror), options.idle_limit)
    state = connection.state(_note)
    print(f"lab is up after {state['boot_s']:g} s" if started else "lab is up already")
    _print_state(state)
    return 0


def _state() -> dict[str, Any] | None:
    from pytest_rdma.lab import client

    connection = client.connect_up()
    return None if connection is None else connection.state(_note)


def _status(_: argparse.Namespace) -> int:
    from pytest_rdma.lab import client, files

    state = _state()
    if state is None:
        print("no lab is up: start one with `pytest-rdma lab up`")
        console = files.console_of_the_dead(client.runtime_directory())
        if console.exists():
            print(f"a guest died at {time.ctime(console.stat().st_mtime)}: its console is in {console}")
        return 3
    _print_state(state)
    return 0


def _print_state(state: dict[str, Any]) -> None:
    from pytest_rdma.lab import hosts_of

    for host, guest in zip(hosts_of(state), state["guests"]):
        reach = f"{host.user}@{host.address} port {host.port}"
        print(f"{host.name}: {reach}, fabric {host.fabric_address}, pid {guest['pid']}")
    print(
        f"accel {state['accel']}, up for {time.time() - state['started_at']:.0f} s, supervisor pid "
        f"{state['supervisor_pid']}, ends when unused for {state['idle_limit_s']:g} s"
    )
    print(f"image {state['image']}")
    print(f"keys {state['directory']}/id_ed25519, known hosts {state['directory']}/known_hosts")


def _ssh(options: argparse.Namespace) -> int:
    from pytest_rdma.lab import hosts_of
    from pytest_rdma.lab.ssh_command import ssh_command

    state = _state()
    if state is None:
        print("pytest-rdma: no lab is up: start one with `pytest-rdma lab up`", file=sys.stderr)
        return 3
    command = [*ssh_command(hosts_of(state)[options.number - 1]), *options.command]
    return os.execvp(command[0], command)


def _down(_: argparse.Namespace) -> int:
    from pytest_rdma.lab import client

    connection = client.connect_up()
    if connection is None:
        print("no lab is up")
        return 0
    if not connection.down():
        print("pytest-rdma: the lab did not go down in time", file=sys.stderr)
        return 1
    print("lab is down")
    return 0


if __name__ == "__main__":
    sys.exit(main())
