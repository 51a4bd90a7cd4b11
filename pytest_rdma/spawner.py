"""The one thread that starts all programs: the kernel ends them when the *thread* ends that started them.

It is not one of a pool, which the interpreter waits for at its end: a start may be held up in the kernel, by a working
directory on a file server that is gone, say.
"""

from __future__ import annotations

import os
import queue
import threading
from concurrent.futures import Future
from typing import Any, Callable, TypeVar

T = TypeVar("T")


class Spawner:
    """Makes calls in its thread, one after the other."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def call(self, make: Callable[[], T]) -> T:
        """Return what the call returns, or raise what it raises."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="rdma programs", daemon=True)
                self._thread.start()
        made: Future[T] = Future()
        self._calls.put((make, made))
        return made.result()

    def _work(self) -> None:
        while True:
            make, made = self._calls.get()
            try:
                made.set_result(make())
            except BaseException as error:  # crosses to the waiting thread whatever it is
                made.set_exception(error)
            del make, made  # what was made is another's to keep


_SPAWNER = Spawner()


def in_spawner(make: Callable[[], T]) -> T:
    """Make a call in the thread that starts the programs of this process."""
    return _SPAWNER.call(make)


def _renew() -> None:
    global _SPAWNER
    _SPAWNER = Spawner()


os.register_at_fork(after_in_child=_renew)  # no thread comes along, and one that is awaited never answers
