"""Real `tirage serve` processes for tests: started once for each set of flags, stopped at the end of the run.

Most are forks of a process that has imported what servers import (`server_forks.py`); that takes a fifth of the work.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

import httpx
from server_forks import ForkedServer

START_S = 1800.0  # the first server on a machine compiles the kernels, and a busy machine takes its time
SOURCES = Path(__file__).parents[1] / "src"
FORKS = sys.platform == "linux"
READ_LATE = ("TIRAGE_TEST_", "FD_")
"""Variables that nothing reads while it is imported."""


class Server:
    """`tirage serve` on a free port, ready when the `with` block begins.

    `wait=False` returns as soon as it listens. `environ` adds to the environment; `folders` to the import path. The
    process may have at most so many `descriptors` open. It is a process of its own from the start where any of that
    must hold while it imports, and with `fork=False`.
    """

    def __init__(
        self,
        model: str | Path = "tiny",
        *flags: str,
        wait: bool = True,
        environ: Mapping[str, str] | None = None,
        folders: tuple[Path, ...] = (),
        descriptors: int | None = None,
        fork: bool = True,
    ) -> None:
        # A new connection for every request, so that none is used just when the server closes it.
        self._client = httpx.Client(timeout=60, verify=False, limits=httpx.Limits(max_keepalive_connections=0))
        self._log = tempfile.NamedTemporaryFile(suffix=".log")  # noqa: SIM115
        path = tuple(str(folder) for folder in (SOURCES, *folders))
        arguments = ("serve", "--model", str(model), "--port", "0", *flags)
        added = {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "NO_COLOR": "1", **(environ or {})}
        late = fork and FORKS and descriptors is None and all(name.startswith(READ_LATE) for name in environ or ())
        self.process: subprocess.Popen[bytes] | ForkedServer = (
            ForkedServer(arguments, {**os.environ, **added}, path, self._log.name)
            if late
            else started(arguments, {**os.environ, **added}, self._log, descriptors)
        )
        self.pid = self.process.pid
        try:
            self.url = self._address()
            self.port = int(self.url.rpartition(":")[2])
            until(self._accepts, self, "accepting connections")
            if wait:
                self.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def metrics(self) -> dict[str, float]:
        """The numbers of /metrics by their names, labels included."""
        lines = (line.rpartition(" ") for line in self.get("/metrics").text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    def metric(self, name: str) -> float:
        """One of them; 0.0 when it is not there."""
        return self.metrics().get(name, 0.0)

    @property
    def log(self) -> str:
        """What it has written on stderr."""
        if self._log.closed:
            return self._written
        return Path(self._log.name).read_text(encoding="utf-8", errors="replace")

    def _accepts(self) -> bool:
        """Whether a connection is taken: the log names the port a moment earlier."""
        try:
            self.get("/health")
        except httpx.ConnectError:
            return False
        return True

    def wait_until_ready(self) -> None:
        """Returns when the model answers."""
        until(lambda: self.get("/health").status_code == 200, self, "ready")

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Any request."""
        return self._client.request(method, f"{self.url}{path}", **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """A POST of JSON."""
        return self._client.post(f"{self.url}{path}", json=body, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        """A GET."""
        return self._client.get(f"{self.url}{path}", **options)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the process."""
        self.process.send_signal(number)

    def stop(self, *, within: float = 45.0) -> int:
        """Ends the process, gently at first; the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self._written = self.log
            self._log.close()
            self._client.close()

    def ended(self, *, within: float = 60.0) -> int:
        """The exit status of a process that ends by itself."""
        return self.process.wait(within)

    def _address(self) -> str:
        found: list[str] = []

        def look() -> bool:
            found[:] = re.findall(r"listening on (https?://[^\s\"]+)", self.log)
            return bool(found)

        until(look, self, "listening")
        return found[0]


def started(
    arguments: Sequence[str], environ: Mapping[str, str], log: IO[bytes], descriptors: int | None
) -> subprocess.Popen[bytes]:
    """A new process of the command line, which may have at most so many descriptors open."""
    limits = () if descriptors is None else (f"-Sn {descriptors // 2}", f"-Hn {descriptors}")
    command = limited(limits, sys.executable, "-m", "tirage", *arguments)
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env=environ)


def limited(limits: Sequence[str], *command: str) -> list[str]:
    """The command under limits of `ulimit`, set by a shell: a fork of a process with threads would warn."""
    if not limits:
        return [*command]
    script = "".join(f"ulimit {each} && " for each in limits)
    return ["sh", "-c", f'{script}exec "$@"', "sh", *command]


def slow_server(
    *flags: str, step_s: float = 0.02, hang: Path | None = None, load: Path | None = None, **options: Any
) -> Server:
    """A server of the bundled model with slow steps, which hang while one file exists and begin after another."""
    environ = {
        "TIRAGE_TEST_STEP_S": str(step_s),
        "TIRAGE_TEST_HANG": str(hang or ""),
        "TIRAGE_TEST_LOAD": str(load or ""),
    }
    plugin = ("--logits-processor", "plain=slow_model:plain")
    return Server("tiny", *plugin, *flags, environ=environ, folders=(Path(__file__).parent,), **options)


def until(true: Any, server: Server, what: str) -> None:
    """Waits for something about a server; AssertionError with its log when it ends or takes too long."""
    deadline = time.monotonic() + START_S
    while not true():
        assert server.process.poll() is None, f"the server ended before it was {what}:\n{server.log}"
        assert time.monotonic() < deadline, f"the server is not {what}:\n{server.log}"
        time.sleep(0.05)


@cache
def shared(model: str | Path = "tiny", *flags: str) -> Server:
    """A running server with these flags, one for the whole run; its users must leave it as they found it."""
    server = Server(model, *flags)
    atexit.register(server.stop)
    return server
