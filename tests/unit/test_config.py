"""Options, environment and ini file become one configuration whose values know their source."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_rdma.config import RdmaConfig, Source, resolve
from pytest_rdma.errors import RdmaUsageError
from pytest_rdma.options import OPTIONS, options_table

README = Path(__file__).parents[2] / "README.md"


def resolved(options=None, environment=None, ini=None) -> RdmaConfig:
    given = {f"rdma_{name}": value for name, value in (options or {}).items()}
    return resolve(given, environment or {}, lambda key: (ini or {}).get(key, ""), "pytest.ini")


def test_without_anything_all_is_default_and_nothing_is_asked_for():
    config = resolved()
    assert not config.asked
    assert config.device.value is None and config.device.word == "default"
    assert (config.retry_count.value, config.rnr_retry.value, config.ack_timeout.value) == (6, 6, 14)


def test_the_command_line_wins_over_the_environment_and_that_over_the_ini_file():
    ini, environment = {"rdma_device": "a"}, {"RDMA_DEVICE": "b"}
    one = resolved(ini=ini).device
    two = resolved(ini=ini, environment=environment).device
    three = resolved({"device": "c"}, environment, ini).device
    assert [(setting.value, setting.word) for setting in (one, two, three)] == [
        ("a", "ini"),
        ("b", "RDMA_DEVICE"),
        ("c", "option"),
    ]


def test_every_option_is_read_from_its_ini_key_and_its_variable():
    samples = {"device": "rxe0/1", "peer_device": "rxe1", "mtu": "1024", "peer_exec": "ssh h", "on_peer_loss": "stop"}
    samples.update(reference="perftest", counters="rnr_naks=0", artifacts="/tmp")
    for option in OPTIONS:
        text = samples.get(option.name, "3" if option.metavar else "yes")
        by_ini = getattr(resolved(ini={option.ini: text}), option.name)
        by_variable = getattr(resolved(environment={option.variable: text}), option.name)
        assert by_ini.value == by_variable.value != getattr(RdmaConfig(), option.name).value
        assert (by_ini.source, by_variable.source) == (Source.INI, Source.ENVIRONMENT)


def test_gid_index_0_is_a_value():
    setting = resolved({"gid_index": "0"}).gid_index
    assert setting.value == 0 and setting.given


def test_an_empty_variable_is_not_given_but_an_empty_option_is_refused():
    assert not resolved(environment={"RDMA_PEER": ""}).peer.given
    with pytest.raises(RdmaUsageError, match=r"^--peer: '' is not a host"):
        resolved({"peer": ""})


@pytest.mark.parametrize(
    ("name", "text", "wrong"),
    [
        ("device", "rxe0/", "a device"),
        ("device", "rxe0/0", "ports count from 1"),
        ("device", "", "a device"),
        ("device", "a b", "a device"),
        ("peer", "-oProxyCommand=x", "a host"),
        ("peer", "host 2", "a host"),
        ("peer_exec", " ", "a command"),
        ("peer_exec", "ssh 'host", "a command"),
        ("python", "-c", "an interpreter"),
        ("gid_index", "-1", "from 0 to 65535"),
        ("gid_index", "one", "from 0 to 65535"),
        ("mtu", "9000", "256, 512, 1024, 2048 and 4096"),
        ("sl", "16", "from 0 to 15"),
        ("traffic_class", "256", "from 0 to 255"),
        ("retry_count", "8", "from 0 to 7"),
        ("rnr_retry", "8", "from 0 to 7"),
        ("ack_timeout", "32", "from 0 to 31"),
        ("timeout_scale", "0", "above 0"),
        ("timeout_scale", "nan", "above 0"),
        ("timeout_scale", "inf", "above 0"),
        ("timeout_scale", "1e9", "at most 1000"),
    ],
)
def test_a_bad_value_is_named_with_where_it_came_from_and_what_is_allowed(name, text, wrong):
    option = next(option for option in OPTIONS if option.name == name)
    with pytest.raises(RdmaUsageError) as by_option:
        resolved({name: text})
    assert str(by_option.value).startswith(f"{option.flag}: {text!r} is not ")
    assert wrong in str(by_option.value) and "\n" not in str(by_option.value)
    if not text:
        return
    with pytest.raises(RdmaUsageError, match=f"^{option.variable}: "):
        resolved(environment={option.variable: text})
    with pytest.raises(RdmaUsageError, match=f"^{option.ini} in pytest.ini: "):
        resolved(ini={option.ini: text})


def test_a_switch_takes_only_words_for_yes_and_no():
    assert resolved(environment={"RDMA_LAB": "off"}).lab.value is False
    with pytest.raises(RdmaUsageError, match="RDMA_LAB: 'maybe' is not a switch"):
        resolved(environment={"RDMA_LAB": "maybe"})


@pytest.mark.parametrize(
    ("first", "second"),
    [("peer", "peer_exec"), ("lab", "host"), ("lab", "peer"), ("lab", "peer_exec")],
)
def test_options_that_exclude_each_other_are_refused_by_name(first, second):
    options = {first: True if first == "lab" else "host2", second: "host3"}
    with pytest.raises(RdmaUsageError, match="exclude each other"):
        resolved(options)


def test_a_peer_on_the_command_line_sets_a_lab_of_the_ini_file_aside():
    config = resolved({"peer": "host2"}, ini={"rdma_lab": "true"})
    assert config.peer.value == "host2" and config.lab.value is False


def test_a_lab_on_the_command_line_sets_a_peer_of_the_environment_aside():
    config = resolved({"lab": True}, {"RDMA_PEER": "host2"})
    assert config.peer.value is None and config.lab.value is True


def test_an_interpreter_for_a_host_that_is_not_remote_is_refused():
    with pytest.raises(RdmaUsageError, match=r"--peer-python.*needs --peer or --peer-exec"):
        resolved({"peer_python": "python3.9"})
    with pytest.raises(RdmaUsageError, match=r"--rdma-python.*--rdma-host"):
        resolved({"python": "python3.9"})


def test_options_that_only_tune_ask_for_no_host():
    assert not resolved({"mtu": "1024", "strict": True, "timeout_scale": "2"}).asked
    assert resolved({"device": "rxe0"}).asked
    assert resolved({"lab": True}).asked


def test_an_own_rdma_config_is_checked_and_marked():
    config = resolved({"mtu": "1024"}).with_(mtu=2048, device="rxe1")
    assert (config.mtu.value, config.mtu.word, config.device.value) == (2048, "fixture", "rxe1")
    with pytest.raises(RdmaUsageError, match="mtu in rdma_config: '9000' is not a path MTU"):
        config.with_(mtu=9000)
    with pytest.raises(RdmaUsageError, match="no 'mut'; it has device, "):
        config.with_(mut=1024)


def test_the_readme_holds_the_table_of_options():
    readme = README.read_text()
    _, start, rest = readme.partition("<!-- options -->\n")
    table, end, _ = rest.partition("\n<!-- /options -->")
    assert start and end, "README.md needs the lines <!-- options --> and <!-- /options -->"
    assert table.strip() == options_table(), (
        "put the output of python -c 'import pytest_rdma.options as o; print(o.options_table())' there"
    )
