"""SSH connections and their streams, over paramiko. Every step has a deadline; nothing is ever asked of a user."""

from __future__ import annotations

import contextlib
import errno
import logging
import queue
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import HostKeyError, HostLostError, HostUnreachableError, RdmaEnvironmentError, errno_text
from pytest_rdma.known_hosts import KnownHosts
from pytest_rdma.ssh import SshTarget
from pytest_rdma.streams import CHUNK_BYTES, DRAIN_S, Stream, status_text

try:
    with warnings.catch_warnings():
        # Old releases of paramiko use what new ones of cryptography deprecate; a run may take warnings for errors.
        warnings.simplefilter("ignore")
        import paramiko
except ImportError as missing:
    raise RdmaEnvironmentError(
        f"SSH needs paramiko, which does not import here ({missing}): install python3-paramiko, "
        'or reach the host by another way, like --peer-exec "ssh host2"'
    ) from None

T = TypeVar("T")
LOG = "pytest_rdma.ssh"
KEEPALIVE_S = 15
SLICE_S = 0.5
AGENT_S = 5.0
"""How long the ssh-agent may take to list its keys: one that is stopped, or forwarded from afar, may never do so."""
DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
KEY_CLASSES = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)
RSA_ALGORITHMS = ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa")

# Without a handler Python prints what paramiko logs, tracebacks too, although we report each error ourselves.
logging.getLogger(LOG).addHandler(logging.NullHandler())


def connect(target: SshTarget, deadline: Deadline) -> SshConnection:
    """Dial, check the host key, and log in."""
    known = KnownHosts(target.known_hosts_files)
    sock = _dial(target, deadline)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # paramiko writes for as long as it takes, and holds a lock meanwhile: the kernel must end what is not taken.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(deadline.timeout_s * 1000))
        transport = paramiko.Transport(sock)
    except BaseException:
        sock.close()
        raise
    try:
        _negotiate(transport, target, known, deadline)
        key = transport.get_remote_server_key()
        try:
            known.check(target.host, target.port, key.get_name(), key.asbytes(), target.host_key_alias)
        except HostKeyError as error:
            raise HostKeyError("; ".join((str(error), *target.notes))) from None
        _Login(transport, target, deadline).run()
    except BaseException:
        transport.close()
        raise
    transport.set_keepalive(KEEPALIVE_S)
    return SshConnection(target, transport)


def _unreachable(target: SshTarget, what: str) -> HostUnreachableError:
    return HostUnreachableError(f"cannot reach {target.name} ({target.host} port {target.port}): {what}")


def _dial(target: SshTarget, deadline: Deadline) -> socket.socket:
    addresses = _look_up(target, deadline)
    error: OSError | None = None
    for index, (family, kind, protocol, _, address) in enumerate(addresses):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(max(0.1, deadline.remaining_s / (len(addresses) - index)))
            sock.connect(address)
            return sock
        except OSError as failure:
            sock.close()
            error = failure
    assert error is not None
    raise _unreachable(target, _dial_failure(error, deadline)) from None


def _dial_failure(error: OSError, deadline: Deadline) -> str:
    if isinstance(error, socket.timeout):
        return f"timed out after {deadline.timeout_s:g} s: the host is down, or a firewall drops the packets"
    hints = {
        errno.ECONNREFUSED: "connection refused: no SSH server listens there",
        errno.EHOSTUNREACH: "no route to the host: is it up, and is the address right?",
        errno.ENETUNREACH: "the network is unreachable: this machine has no route there",
        errno.EINVAL: "the address is not usable: a link-local one needs the right interface after %",
    }
    number = error.errno or 0
    return f"{hints.get(number, 'cannot connect')}: {errno_text(number)}"


def _look_up(target: SshTarget, deadline: Deadline) -> list[Any]:
    def look_up() -> list[Any]:
        return list(socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM))

    try:
        return _within(deadline.remaining_s, f"resolve {target.host}", look_up)
    except TimeoutError:
        raise _unreachable(target, f"the name was not resolved within {deadline.timeout_s:g} s") from None
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        scope = target.host.partition("%")[2]
        hint = f"is there an interface {scope}?" if scope else "check it, /etc/hosts, or HostName in ~/.ssh/config"
        raise _unreachable(target, f"the name {target.host!r} does not resolve ({reason}): {hint}") from None


def _within(seconds: float, name: str, call: Callable[[], T], too_late: Callable[[T], object] | None = None) -> T:
    """Make a call that has no deadline of its own, in a thread; TimeoutError when it has not come back by then.

    What comes back later is given to `too_late`.
    """
    results: queue.SimpleQueue[T] = queue.SimpleQueue()
    errors: list[Exception] = []
    lock = threading.Lock()
    given_up = False

    def run() -> None:
        try:
            result = call()
        except Exception as error:  # crosses to the waiting thread whatever it is
            errors.append(error)
            results.put(None)  # type: ignore[arg-type]
            return
        with lock:
            if not given_up:
                results.put(result)
                return
        if too_late is not None:
            too_late(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        result = results.get(timeout=max(0.1, seconds))
    except queue.Empty:
        with lock:
            given_up = True
        try:
            result = results.get_nowait()  # it may have come since
        except queue.Empty:
            raise TimeoutError from None
    if errors:
        raise errors[0]
    return result


class _KeyAgent(paramiko.Agent):
    """The ssh-agent; its socket is closed, too, when it does not answer as one: paramiko leaves it open then."""

    def __init__(self) -> None:
        try:
            super().__init__()
        except BaseException:
            self.close()
            raise


def _negotiate(transport: paramiko.Transport, target: SshTarget, known: KnownHosts, deadline: Deadline) -> None:
    """Agree on keys; the host is asked first for a key of a type that is known for it."""
    transport.set_log_channel(LOG)
    transport.banner_timeout = max(0.1, deadline.remaining_s)
    transport.auth_timeout = max(0.1, deadline.remaining_s)
    types: list[str] = []
    for known_type in known.key_types(target.host, target.port, target.host_key_alias):
        types += RSA_ALGORITHMS if known_type == "ssh-rsa" else (known_type,)
    options = transport.get_security_options()
    offered = tuple(options.key_types)
    first = tuple(name for name in types if name in offered)
    options.key_types = first + tuple(name for name in offered if name not in first)
    try:
        transport.start_client(timeout=max(0.1, deadline.remaining_s))
        transport.get_remote_server_key()
    except (paramiko.SSHException, EOFError, OSError) as error:
        if deadline.passed or deadline.remaining_s < 0.2:
            what = f"it accepted the connection, but SSH was not agreed on within {deadline.timeout_s:g} s"
            raise _unreachable(target, f"{what}: is that an SSH server, and is it healthy?") from None
        reason = str(error).strip() or type(error).__name__
        raise _unreachable(target, f"it accepted the connection, but does not speak SSH with us: {reason}") from None


class _Login:
    """Tries the keys of files and agent in turn, as one user."""

    def __init__(self, transport: paramiko.Transport, target: SshTarget, deadline: Deadline) -> None:
        self._transport = transport
        self._target = target
        self._deadline = deadline
        self._tried: list[str] = []
        self._skipped: list[str] = []
        self._accepts: list[str] = []

    def run(self) -> None:
        for label, key in self._keys():
            self._tried.append(label)
            if self._offer(key):
                return
            if self._deadline.passed:
                raise self._failure(f"it did not answer within {self._deadline.timeout_s:g} s")
            if not self._transport.is_active():
                raise self._failure(
                    f"it cut the connection after {len(self._tried)} keys, which were too many for it: name the right "
                    "one by IdentityFile, with IdentitiesOnly yes, in ~/.ssh/config"
                )
        if not self._tried and self._offer(None):
            return
        raise self._failure("add one of your public keys to ~/.ssh/authorized_keys there, or name one by IdentityFile")

    def _offer(self, key: Any) -> bool:
        user = self._target.user
        with closed_at(self._deadline, self._transport):
            try:
                more = self._transport.auth_publickey(user, key) if key else self._transport.auth_none(user)
            except paramiko.BadAuthenticationType as error:
                self._accepts = [way for way in error.allowed_types if way]
                return False
            except (paramiko.SSHException, EOFError, OSError):
                return False
        if more:
            self._accepts = list(more)
        return not more

    def _keys(self) -> Iterator[tuple[str, Any]]:
        named = self._target.identity_files
        files = named or tuple(str(Path(key).expanduser()) for key in DEFAULT_KEYS)
        for file in files:
            if not Path(file).exists():
                if named:
                    self._skipped.append(f"{file}: no such file")
                continue
            key = self._load(file)
            if key is not None:
                yield file, key
        yield from self._agent_keys(files)

    def _load(self, file: str) -> Any:
        reason = "not a key that paramiko reads"
        for cls in KEY_CLASSES:
            try:
                return cls.from_private_key_file(file)
            except paramiko.PasswordRequiredException:
                reason = "it needs a passphrase: load it into ssh-agent"
            except OSError as error:
                reason = str(error.strerror)
            except (paramiko.SSHException, ValueError, IndexError):
                continue
        self._skipped.append(f"{file}: {reason}")
        return None

    def _agent_keys(self, files: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        """With IdentitiesOnly the agent is asked only for the keys whose public halves lie beside the files."""
        wanted = {_public_blob(f"{file}.pub") for file in files} if self._target.identities_only else None
        seconds = min(AGENT_S, self._deadline.remaining_s)
        try:
            agent = _within(seconds, "ssh-agent", _KeyAgent, _KeyAgent.close)
        except TimeoutError:
            self._skipped.append(f"ssh-agent: it did not answer within {seconds:.1f} s")
            return
        except (paramiko.SSHException, OSError) as error:
            self._skipped.append(f"ssh-agent: {error}")
            return
        try:
            for key in agent.get_keys():
                if wanted is None or key.asbytes() in wanted:
                    yield f"{getattr(key, 'comment', '') or key.get_name()} (ssh-agent)", key
        finally:
            agent.close()

    def _failure(self, what: str) -> HostUnreachableError:
        target = self._target
        tried = f"it refused {', '.join(self._tried)}" if self._tried else "there is no key to offer"
        parts = [f"cannot log in to {target.name} as {target.user} ({target.host} port {target.port}): {tried}"]
        if self._skipped:
            parts.append(f"skipped {', '.join(self._skipped)}")
        if self._accepts and "publickey" not in self._accepts:
            parts.append(f"it accepts only: {', '.join(self._accepts)}")
        return HostUnreachableError("; ".join([*parts, what]))


def _public_blob(file: str) -> bytes:
    from base64 import b64decode

    try:
        return b64decode(Path(file).read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return b""


@contextlib.contextmanager
def closed_at(deadline: Deadline, transport: paramiko.Transport) -> Iterator[None]:
    """Close the connection at the deadline: some of paramiko's waits end in no other way."""
    timer = threading.Timer(deadline.remaining_s, transport.close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class SshConnection:
    """A login that carries any number of streams."""

    def __init__(self, target: SshTarget, transport: paramiko.Transport) -> None:
        self._target = target
        self._transport = transport

    @property
    def usable(self) -> bool:
        return self._transport.is_active()

    def open(self, command: str, deadline: Deadline) -> SshStream:
        """Run `command` there; no terminal, no agent forwarding."""
        with closed_at(deadline, self._transport):
            try:
                channel = self._transport.open_session(timeout=max(0.1, deadline.remaining_s))
                channel.exec_command(command)
            except (paramiko.SSHException, EOFError, OSError) as error:
                what = f"it let us in, but runs no command: {error or type(error).__name__}"
                raise _unreachable(self._target, what) from None
        return SshStream(channel, f"ssh {self._target.name}")

    def close(self) -> None:
        self._transport.close()


class SshStream(Stream):
    """One channel."""

    def __init__(self, channel: paramiko.Channel, description: str) -> None:
        super().__init__()
        self.description = description
        self._channel = channel
        self._write_lock = threading.Lock()
        channel.settimeout(SLICE_S)
        self._drain = threading.Thread(target=self._drain_stderr, name=f"stderr of {description}", daemon=True)
        self._drain.start()

    def read(self, timeout_s: float) -> bytes | None:
        """As Stream says; paramiko has one time-out for both directions, so it is `SLICE_S` in any case."""
        try:
            return self._channel.recv(CHUNK_BYTES)
        except socket.timeout:
            # A daemon that the process left behind may hold its standard output open for ever.
            return b"" if self._channel.exit_status_ready() and not self._channel.recv_ready() else None

    def write(self, data: bytes, deadline: Deadline) -> None:
        rest = memoryview(data)
        with self._write_lock:
            while rest:
                try:
                    sent = self._channel.send(bytes(rest[:CHUNK_BYTES]))
                except socket.timeout:
                    if deadline.passed:
                        raise HostLostError(f"the far side took no input for {deadline.timeout_s:g} s") from None
                    continue
                except (OSError, EOFError, paramiko.SSHException) as error:
                    raise HostLostError(f"the stream ended: {error}") from None
                if not sent:
                    raise HostLostError("the stream is closed")
                rest = rest[sent:]

    def end_input(self) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.shutdown_write()

    def close(self, grace_s: float) -> bool:
        self.end_input()
        self._channel.status_event.wait(grace_s)
        ended = not self.cut
        self._channel.close()
        return ended

    @property
    def cut(self) -> bool:
        channel = self._channel
        return channel.exit_status < 0 and not (channel.status_event.is_set() and channel.get_transport().is_active())

    def release(self) -> None:
        self._drain.join(DRAIN_S)

    def exit_text(self, timeout_s: float) -> str:
        if not self._channel.status_event.wait(timeout_s):
            return "no exit status yet"
        self._drain.join(DRAIN_S)
        status = self._channel.exit_status
        if status >= 0:
            return status_text(status)
        transport = self._channel.get_transport()
        return "no exit status, as after a signal" if transport.is_active() else "the connection cut"

    def _drain_stderr(self) -> None:
        while True:
            try:
                data = self._channel.recv_stderr(CHUNK_BYTES)
            except socket.timeout:
                if self._channel.closed:
                    return
                continue
            if not data:
                return
            self.stderr.add(data)
