"""A real `tirage serve --ray` on a cluster of its own, and what its processes are."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

START_S = 300.0
TESTS = Path(__file__).parents[2]
STEP_S = 0.01
SLOW = ("--logits-processor", "plain=slow_model:plain")
OPTIONS = ("--ray", "--num-cpus", "0.1", "--port", "0", *SLOW)


class RayServer:
    """The process, with slow steps, ready when the `with` block begins; then it drains and must end with status 0."""

    def __init__(self, *flags: str) -> None:
        path = os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))
        self._log = tempfile.NamedTemporaryFile(suffix=".log")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tirage", "serve", *OPTIONS, *flags],
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            env={**os.environ, "NO_COLOR": "1", "PYTHONPATH": path, "TIRAGE_TEST_STEP_S": str(STEP_S)},
        )
        until(self._listens, START_S)
        self.url = re.findall(r"listening on (http://[\d.:]+)", self.log)[0]
        self.client = httpx.Client(base_url=self.url, timeout=120, trust_env=False)

    def __enter__(self) -> RayServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.log

    @property
    def log(self) -> str:
        """What it has written on stderr."""
        return Path(self._log.name).read_text(encoding="utf-8", errors="replace")

    def _listens(self) -> bool:
        assert self.process.poll() is None, self.log
        return "listening on" in self.log

    def replicas(self) -> dict[int, str]:
        """The processes of the replicas, with the title that Ray gives them."""
        return {pid: name for pid, name in below(self.process.pid) if name.startswith("ray::ServeReplica")}

    def samples(self, name: str) -> dict[str, float]:
        """The series of a metric, by their labels."""
        page = self.client.get("/metrics").text
        return {labels: float(value) for labels, value in re.findall(rf"^{name}{{(.*)}} (\S+)$", page, re.MULTILINE)}

    def running(self) -> float:
        """The samples that all replicas are writing."""
        return sum(self.samples("tirage_engine_running").values())


class RayCluster:
    """A cluster that runs by itself, at `address`, until the `with` block ends; `environ` lets processes join it."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._log = tempfile.NamedTemporaryFile(suffix=".log")  # noqa: SIM115
        self.environ = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
        host, port = self.address.split(":")
        options = ("--node-ip-address", host, "--port", port, "--num-cpus", "2", "--include-dashboard", "false")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", *options],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=self.environ,
        )
        until(self._started)

    def _started(self) -> bool:
        told = Path(self._log.name).read_text(errors="replace")
        assert self._process.poll() is None, told
        return "Ray runtime started" in told

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)


def below(pid: int) -> list[tuple[int, str]]:
    """The processes that descend from a process, with their titles."""
    parents: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text()
            title = (folder / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
        except OSError:
            continue
        parents[int(folder.name)] = (int(status.rpartition(")")[2].split()[1]), title)
    found, new = [], {pid}
    while new:
        children = {each for each, (parent, _) in parents.items() if parent in new}
        found += [(each, parents[each][1]) for each in sorted(children)]
        new = children
    return found


def until(true: Callable[[], Any], seconds: float = START_S) -> None:
    """Waits for something; AssertionError when it takes too long."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)
