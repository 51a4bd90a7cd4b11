"""`host.call`: run a function of the caller's own source on a host, beside the live objects there."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import linecache
import sys
import threading
import tokenize
import types
import weakref
from pathlib import Path
from typing import Any, Callable, Union

from pytest_rdma import wire
from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import RdmaError, RdmaUsageError, RemoteError, errno_of, message_of
from pytest_rdma.host import Call, Host, LocalHost, op

Function = Union[str, Callable[..., Any]]

_shipped: weakref.WeakKeyDictionary[Host, set[tuple[int, str]]] = weakref.WeakKeyDictionary()
_sources: dict[str, dict[str, str]] = {}
_modules: dict[str, types.ModuleType] = {}
_lock = threading.RLock()


def call(host: Host, function: Function, *args: Any, timeout_s: float = 30.0, **kwargs: Any) -> Any:
    """Run a module-level function on the host and return its result, which must be plain data or handles.

    `function` is the function or "module:function". Its module's source is shipped, so there it may import the
    standard library, pyverbs, pytest_rdma and what is installed on the host. Handles among the arguments arrive as
    the live objects, whose `raw` is pyverbs'. An exception that is not of this package arrives as RemoteError.
    """
    spec = describe(function, host)
    known = _shipped.setdefault(host, set())
    key = (host.generation, spec["digest"])
    sent = {**spec, "source": None} if key in known else spec
    value = host.invoke("call.run", sent, *_crossed(host, args, kwargs), timeout_s=timeout_s)
    known.add(key)  # only now is it certain that the source has arrived
    return value


def submit_call(host: Host, function: Function, *args: Any, timeout_s: float = 30.0, **kwargs: Any) -> Call:
    """Start what `call` runs."""
    return host.submit("call.run", describe(function, host), *_crossed(host, args, kwargs), timeout_s=timeout_s)


def _crossed(host: Host, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the arguments as they arrive; on a LocalHost, where nothing crosses, the same as elsewhere."""
    both = [list(args), kwargs]
    return list(wire.decode(wire.encode(both, host), host)) if isinstance(host, LocalHost) else both


def describe(function: Function, host: Host) -> dict[str, Any]:
    """Return module, name and source of a function as plain data; RdmaUsageError says why it cannot be shipped."""
    module, name = _named(function) if isinstance(function, str) else _identified(function)
    spec = {"module": module, "name": name, "digest": "", "file": "", "source": None}
    root = module.partition(".")[0]
    if isinstance(host, LocalHost) or root in sys.stdlib_module_names or root == "pytest_rdma":
        return spec
    file, source = _source(module, f"cannot run {module}:{name} on {host.name}")
    return {**spec, "digest": hashlib.sha256(source.encode()).hexdigest(), "file": file, "source": source}


def _named(text: str) -> tuple[str, str]:
    module, separator, name = text.partition(":")
    if not separator or not module or not name.isidentifier():
        raise RdmaUsageError(f"{text!r} does not name a function: it must be like 'package.module:function'")
    return module, name


def _identified(function: Callable[..., Any]) -> tuple[str, str]:
    name = getattr(function, "__qualname__", None)
    module = getattr(function, "__module__", None)
    if name is None or module is None or isinstance(function, type):
        raise RdmaUsageError(f"{function!r} cannot run on a host: pass a function of a module")
    if not name.isidentifier():
        what = "a lambda" if "<lambda>" in name else "a nested function" if "<locals>" in name else "a method"
        raise RdmaUsageError(
            f"{module}:{name} cannot run on a host: it is {what}; pass a function that stands at the top of a module"
        )
    return module, name


def _source(module: str, attempt: str) -> tuple[str, str]:
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    try:
        if loaded is None:
            spec = importlib.util.find_spec(module)
            file = spec.origin if spec is not None else None
        if file is None:
            raise RdmaUsageError(f"{attempt}: no module {module} with a source file is found here")
        with tokenize.open(file) as opened:
            return str(Path(file).absolute()), opened.read()
    except (ImportError, OSError, SyntaxError, ValueError) as error:
        raise RdmaUsageError(f"{attempt}: its source cannot be read: {error}") from None


# -- on the host


@op("call.run")
def _run(host: LocalHost, deadline: Deadline, spec: dict[str, Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    label = f"{spec['module']}:{spec['name']}"
    module = _load(host, spec, label)
    function = getattr(module, spec["name"], None)
    if not callable(function):
        raise RdmaUsageError(f"there is no function {label}")
    try:
        value = function(*args, **kwargs)
    except RdmaError:
        raise
    except Exception as error:  # the same class to the caller, wherever the host is
        raise _remote_error(error, host) from error
    try:
        return wire.decode(wire.encode(value, host), host)  # as it arrives elsewhere, also where nothing crosses
    except RdmaUsageError as error:
        raise RdmaUsageError(f"the result of {label} on {host.name}: {error}") from None


def _remote_error(error: Exception, host: LocalHost) -> RemoteError:
    name = type(error).__name__
    return RemoteError(f"{name} on {host.name}: {message_of(error)}", type_name=name, errno=errno_of(error))


def _load(host: LocalHost, spec: dict[str, Any], label: str) -> types.ModuleType:
    digest = spec["digest"]
    try:
        if not digest:
            return importlib.import_module(spec["module"])
        with _lock:
            if spec["source"] is not None:
                _sources[digest] = spec
            if digest not in _modules:
                _modules[digest] = _execute(digest, _sources[digest])
            return _modules[digest]
    except ImportError as error:
        raise RdmaUsageError(
            f"cannot load {spec['module']} for {label} on {host.name}: {error}; what runs on a host may import the "
            "standard library, pyverbs, pytest_rdma and what is installed there: keep it in a module of its own"
        ) from error


def _execute(digest: str, spec: dict[str, str]) -> types.ModuleType:
    """Make a module of the source. Its name here is its own: a shipped `types.py` must not be found as `types`."""
    name = f"shipped_{digest[:12]}_{spec['module'].rpartition('.')[2].strip('_')}"
    module = types.ModuleType(name)
    module.__file__ = spec["file"]
    source = spec["source"]
    linecache.cache[spec["file"]] = (len(source), None, source.splitlines(True), spec["file"])
    sys.modules[name] = module
    try:
        exec(compile(source, spec["file"], "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module
