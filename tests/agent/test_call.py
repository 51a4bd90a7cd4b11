"""host.call runs the caller's own source on a host, on a LocalHost and on a RemoteHost alike."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import remote_functions
from streams_tools import script

from pytest_rdma.errors import PostError, RdmaUsageError, RemoteError
from pytest_rdma.host import Host
from pytest_rdma.model import QPState
from pytest_rdma.remote import RemoteHost


def defined_in_a_test_module() -> str:
    return "never shipped: its module imports pytest"


def test_a_function_runs_there_with_arguments(host: Host) -> None:
    assert host.call(remote_functions.add, 1, 2, three=3) == 6
    assert host.call("remote_functions:add", 1, 2) == 3
    assert host.submit_call(remote_functions.add, 4, 5).result() == 9


def test_it_runs_in_the_agent_and_not_here(agent: RemoteHost) -> None:
    found = agent.call(remote_functions.whoami)
    assert found["pid"] == agent.info.pid != os.getpid()
    assert "pytest" not in found["modules"]


def test_the_source_is_shipped_once(agent: RemoteHost, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    invoke = agent.invoke
    monkeypatch.setattr(agent, "invoke", lambda name, *args, **kw: (sent.append(args[0]), invoke(name, *args, **kw))[1])
    agent.call(remote_functions.add, 1, 1)
    agent.call(remote_functions.add, 1, 1)
    agent.call(remote_functions.nap, 0)
    assert [spec["source"] is None for spec in sent][1:] == [True, True]


def test_a_call_that_could_not_be_sent_does_not_count_as_shipped(open_host: Callable[..., RemoteHost]) -> None:
    host = open_host()
    with pytest.raises(RdmaUsageError, match="cannot cross"):
        host.call(remote_functions.add, object(), 1)
    assert host.call(remote_functions.add, 1, 1) == 2


def test_a_function_of_the_standard_library_runs_as_it_is(host: Host) -> None:
    assert isinstance(host.call("os:getpid"), int)
    assert host.call(os.path.basename, "/a/b") == "b"


def test_handles_arrive_as_live_objects(host: Host) -> None:
    program = host.start(["sleep", "60"])
    try:
        assert host.call(remote_functions.program_runs, program) is True
    finally:
        program.close()
    with pytest.raises(RdmaUsageError, match="is closed"):
        host.call(remote_functions.program_runs, program)


def test_plain_data_arrives_and_comes_back_alike(host: Host) -> None:
    assert host.call(remote_functions.give, "tuple") == [1, b"\x00", None]
    assert host.submit_call(remote_functions.give, "tuple").result() == [1, b"\x00", None]
    assert host.call(remote_functions.names_of_types, (1, 2), key=QPState.RTS) == ["list", "int"]
    with pytest.raises(RdmaUsageError, match="cannot cross"):
        host.call(remote_functions.names_of_types, object())


@pytest.mark.parametrize("kind", ["object", "set", "module"])
def test_what_is_not_plain_data_cannot_be_returned(host: Host, kind: str) -> None:
    with pytest.raises(RdmaUsageError, match=r"the result of remote_functions:give on .*cannot cross"):
        host.call(remote_functions.give, kind)


def test_an_exception_arrives_with_type_message_errno_and_where_it_was_raised(agent: RemoteHost) -> None:
    with pytest.raises(RemoteError, match=r"KeyError on host2: 'no such thing'") as failed:
        agent.call(remote_functions.fail)
    assert (failed.value.type_name, failed.value.host) == ("KeyError", "host2")
    assert 'raise KeyError("no such thing")' in str(failed.value.remote_traceback)
    with pytest.raises(RemoteError) as failed:
        agent.call(remote_functions.fail_with_errno)
    assert failed.value.errno == 2


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("no text", "SaysNothing on .*: .its text cannot be had: ValueError"),
        ("odd errno", "OddNumber on .*: odd"),
        ("long", "ValueError on .*: x+ ... .68157440 characters. ... x+$"),
    ],
)
def test_an_odd_exception_is_answered_too(host: Host, kind: str, said: str) -> None:
    with pytest.raises(RemoteError, match=said) as failed:
        host.call(remote_functions.fail_oddly, kind, timeout_s=10.0)
    assert failed.value.errno is None
    assert len(str(failed.value)) < 200_000


def test_an_exception_is_of_the_same_class_wherever_the_host_is(host: Host) -> None:
    with pytest.raises(RemoteError, match="KeyError on"):
        host.call(remote_functions.fail)
    with pytest.raises(PostError, match="the driver refused it") as refused:
        host.call(remote_functions.refuse)
    assert (refused.value.errno, refused.value.bad_index) == (22, 3)


def test_an_error_of_a_class_that_cannot_be_made_anew_arrives_as_another(agent: RemoteHost) -> None:
    with pytest.raises(RemoteError, match=r"TooSlowError on host2: 3 s, and the limit is 2 s") as failed:
        agent.call(remote_functions.be_too_slow)
    assert failed.value.type_name == "TooSlowError"
    assert agent.call(remote_functions.add, 1, 2) == 3


class Thing:
    def method(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda: 1, "is a lambda"),
        ((lambda: (lambda f: f)(lambda: 1))(), "is a lambda"),
        (Thing().method, "is a method"),
        (Thing, "pass a function of a module"),
        (functools.partial(remote_functions.add, 1), "pass a function of a module"),
        ("remote_functions", "does not name a function"),
        ("remote_functions:", "does not name a function"),
        (":add", "does not name a function"),
        ("remote_functions:add()", "does not name a function"),
        ("no_such_module:f", "no_such_module"),
        ("remote_functions:no_such_function", "there is no function remote_functions:no_such_function"),
    ],
)
def test_what_cannot_be_shipped_is_refused_in_one_line(host: Host, function: object, why: str) -> None:
    with pytest.raises(RdmaUsageError, match=why) as refused:
        host.call(function)
    assert "\n" not in str(refused.value)


def test_a_nested_function_is_refused(host: Host) -> None:
    def nested() -> None: ...

    with pytest.raises(RdmaUsageError, match="is a nested function"):
        host.call(nested)


def test_a_module_that_imports_what_the_host_lacks_is_named(agent: RemoteHost) -> None:
    with pytest.raises(
        RdmaUsageError, match=r"cannot load test_call .*on host2: No module named 'pytest'.*module of its own"
    ):
        agent.call(defined_in_a_test_module)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    monkeypatch.syspath_prepend(tmp_path)
    return lambda name, text: (script(tmp_path / f"{name}.py", text), None)[1]


def test_a_module_need_not_be_importable_here(agent: RemoteHost, shipped: Callable[[str, str], None]) -> None:
    shipped("needs_the_host", "import no_such_module_here\ndef f(): return 1\n")
    with pytest.raises(RdmaUsageError, match="No module named 'no_such_module_here'"):
        agent.call("needs_the_host:f")


def test_a_shipped_module_does_not_hide_one_of_the_same_name(
    agent: RemoteHost, shipped: Callable[[str, str], None]
) -> None:
    shipped("programs", "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\ndef f(): return A(3).x\n")
    assert agent.call("programs:f") == 3
    assert agent.run(["true"]).returncode == 0


def test_a_module_that_changed_is_shipped_anew(agent: RemoteHost, shipped: Callable[[str, str], None]) -> None:
    shipped("changing", "def f(): return 1\n")
    assert agent.call("changing:f") == 1
    shipped("changing", "def f(): return 2\n")
    assert agent.call("changing:f") == 2


def test_a_module_with_a_syntax_error_is_shown(agent: RemoteHost, shipped: Callable[[str, str], None]) -> None:
    shipped("broken", "def f(:\n")
    with pytest.raises(RemoteError, match="SyntaxError on host2"):
        agent.call("broken:f")
