"""`tirage serve` as a fork of a process that has imported what a server imports: a fifth of the work of a new process.

`python server_forks.py` is that process, one for each process of the tests. It reads an order a line, as JSON, and
says who started and who ended. `ForkedServer` is a server of it, with the methods of a Popen that tests use.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any


class ForkedServer:
    """A server with these arguments; its standard error goes to the file `log`."""

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str], folders: Sequence[str], log: str) -> None:
        self.pid = parent().start(arguments=arguments, environ=environ, folders=folders, log=log)

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        """The exit status, or minus the signal that ended it; None while it runs."""
        return parent().status(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status; raises TimeoutExpired when there is none after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("tirage serve", timeout or 0.0)
            time.sleep(0.01)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Parent:
    """The process that forks, as the tests see it."""

    def __init__(self) -> None:
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self._answers = self._process.stdin, self._process.stdout.fileno()
        self._unread = b""
        self._ended: dict[int, int] = {}
        self._turn = threading.Lock()
        atexit.register(self._process.communicate)

    def start(self, **order: Any) -> int:
        """The process id of a new server."""
        with self._turn:
            self._orders.write(json.dumps(order).encode() + b"\n")
            self._orders.flush()
            while (started := self._read()) is None:
                pass
            return started

    def status(self, pid: int) -> int | None:
        """How a server ended; None while it runs."""
        with self._turn:
            while b"\n" in self._unread or select.select([self._answers], [], [], 0)[0]:
                self._read()
            return self._ended.get(pid)

    def _read(self) -> int | None:
        """Waits for a line; the process id of the server that it says has started."""
        while b"\n" not in self._unread:
            found = os.read(self._answers, 4096)
            assert found, "the process that starts servers has ended"
            self._unread += found
        line, _, self._unread = self._unread.partition(b"\n")
        pid, status = json.loads(line)
        if status is None:
            return pid
        self._ended[pid] = status
        return None


@cache
def parent() -> Parent:
    return Parent()


def import_all() -> None:
    """Imports what every server does, and loads the kernels."""
    import tirage
    import tirage.cli  # noqa: F401
    import tirage.server.launch  # noqa: F401

    tirage.warmup()
    assert threading.active_count() == 1, threading.enumerate()
    gc.freeze()  # a collection in a fork would copy what the forks share


def forked(orders: int) -> list[str]:
    """Forks for every line of the file; returns in each fork, with the arguments of its command line."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    unread, running = b"", set[int]()
    while True:
        ready = select.select([orders, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            running -= reaped()
        if orders in ready:
            found = os.read(orders, 65536)
            if not found:
                end(running)
            *lines, unread = (unread + found).split(b"\n")
            for line in lines:
                if (pid := os.fork()) == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for descriptor in (woken, wakes):
                        os.close(descriptor)
                    return become(json.loads(line))
                running.add(pid)
                say(pid, None)


def reaped() -> set[int]:
    """The servers that have ended since the last call, each of them reported."""
    ended = set[int]()
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        say(pid, os.waitstatus_to_exitcode(status))
        ended.add(pid)


def end(running: set[int]) -> None:
    """Ends this process and what runs: the tests have ended."""
    for pid in running:
        os.kill(pid, signal.SIGTERM)
    os._exit(0)


def say(pid: int, status: int | None) -> None:
    os.write(1, json.dumps([pid, status]).encode() + b"\n")


def become(order: Mapping[str, Any]) -> list[str]:
    """Makes of this fork the process of the order; the arguments of its command line."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(order["environ"])
    sys.path[1:1] = order["folders"]
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND)
    for source, target in ((null, 0), (null, 1), (log, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)
    return order["arguments"]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then end this process
    sys.path[0] = ""  # as `python -m tirage` has it
    import_all()
    arguments = forked(0)
    from tirage.cli import main

    sys.argv = ["tirage", *arguments]
    main()
