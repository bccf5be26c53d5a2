"""A server whose surroundings fail: killed, asked to stop, without disk, home or descriptors, or with a wrong clock."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
from chaos.load import LONG, TOKENS, allow_files, read_stream
from raw_http import connect, request
from servers import SOURCES, START_S, Server, limited

HERE = Path(__file__).parent
SHORT: dict[str, Any] = {"text": "Once upon", "sampling_params": {"max_new_tokens": 8, "sampling_seed": 3}}
# Tried in a child process before it is compiled, so that there is one to be left behind.
HEAVY = f"({'|'.join(f'[a-z]{{{n}}}x' for n in range(1, 90))}){{1,40}}"


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def answer(port: int, body: Mapping[str, Any], *, within: float = 60.0) -> httpx.Response:
    """The answer to a request on a connection of its own."""
    with httpx.Client(timeout=within) as client:
        return client.post(f"http://127.0.0.1:{port}/generate", json=dict(body))


def is_ready(port: int) -> bool:
    """Whether a server says that it is healthy."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=10).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def process(
    *flags: str,
    environ: Mapping[str, str] | None = None,
    limits: tuple[str, ...] = (),
    stderr: Path | int = subprocess.DEVNULL,
    port: int | None = None,
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server process that is ready, and its port; `limits` are those of `ulimit`, such as `-f 0`."""
    port = port or free_port()
    command = limited(limits, sys.executable, "-m", "tirage", "serve", "--model", "tiny", "--port", str(port), *flags)
    path = os.pathsep.join((str(SOURCES), str(HERE)))
    with stderr.open("wb") if isinstance(stderr, Path) else nullcontext(stderr) as log:
        made = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **(environ or {})},
        )
    try:
        over = time.monotonic() + START_S
        while not is_ready(port):
            if made.poll() is not None or time.monotonic() > over:
                raise AssertionError(f"the server did not start, exit status {made.poll()}")
            time.sleep(0.1)
        yield made, port
    finally:
        if made.poll() is None:
            made.kill()
        made.wait()


def marked(mark: str) -> set[int]:
    """The processes that have a text in their environment."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found - {os.getpid()}


def killed(*, times: int = 20) -> dict[str, Any]:
    """`kill -9` under load: the port is free, no child and no file stays, and the next start answers as before."""
    failures: list[str] = []
    port, expected = free_port(), None
    for number in range(times):
        mark = f"TIRAGE_CHAOS={uuid.uuid4()}"
        with tempfile.TemporaryDirectory() as folder:
            name, _, value = mark.partition("=")
            with process(port=port, environ={name: value, "TMPDIR": folder}) as (made, _):
                found = answer(port, SHORT).json()["output_ids"]
                expected = expected or found
                load = [connect(port) for _ in range(8)]
                for index, each in enumerate(load):
                    heavy = {**SHORT, "sampling_params": {"max_new_tokens": 8, "regex": f"{HEAVY}{number}{index}"}}
                    each.sendall(request("/generate", heavy if index % 2 else LONG))
                time.sleep(0.3)
                made.send_signal(signal.SIGKILL)
                made.wait()
                for each in load:
                    each.close()
            failures += [f"run {number}: other tokens"] if found != expected else []
            failures += left_behind(number, port, mark, Path(folder))
    return {"case": "kill -9", "times": times, "failures": failures}


def left_behind(number: int, port: int, mark: str, folder: Path, *, within: float = 5.0) -> list[str]:
    """What a server that was killed has left: children, files, a port that is taken."""
    over = time.monotonic() + within
    while (children := marked(mark)) and time.monotonic() < over:
        time.sleep(0.05)
    found = [f"run {number}: {len(children)} processes stay for {within:g} s"] if children else []
    files = [path.name for path in folder.rglob("*")]
    found += [f"run {number}: files stay: {files[:5]}"] if files else []
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        found.append(f"run {number}: the port is taken: {error}")
    return found


def drained(*, count: int = 32) -> dict[str, Any]:
    """SIGTERM while streams run: all are written to their end, none is taken any more, and the status is 0."""
    import asyncio

    with process() as (made, port):

        async def read() -> list[str]:
            jobs = [asyncio.create_task(read_stream(port, number)) for number in range(count)]
            while httpx.get(f"http://127.0.0.1:{port}/metrics").text.count("tirage_engine_running 0.0"):
                await asyncio.sleep(0.01)
            made.send_signal(signal.SIGTERM)
            return list(await asyncio.gather(*jobs))

        ended = asyncio.run(read())
        status = made.wait(60)
    # A request that had not arrived is refused; what was accepted is written whole.
    whole = ended.count("whole")
    odd = sorted({how for how in ended if how != "whole" and not how.startswith(("status 503", "Connection"))})
    failures = [*odd, *([f"exit status {status}"] if status else []), *([] if whole else ["no stream was whole"])]
    row = {"case": "SIGTERM", "streams": count, "whole": whole, "refused": count - whole, "exit_status": status}
    return {**row, "tokens_each": TOKENS, "failures": failures}


def full_disk() -> dict[str, Any]:
    """No byte can be written to any file, the log included: requests are answered as ever."""
    return served_as_ever("full disk", limits=("-f 0",), stderr=Path("/dev/full"))


def read_only_home() -> dict[str, Any]:
    """A home and a folder for temporary files that nobody can write to, not even root."""
    nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "TMPDIR"), "/proc")
    return served_as_ever("read-only home", environ=nowhere)


def served_as_ever(case: str, **surroundings: Any) -> dict[str, Any]:
    """A server in some surroundings: a plain request, a constrained one and one that is refused."""
    with process() as (_, port):
        expected = answer(port, SHORT).json()["output_ids"]
    failures: list[str] = []
    try:
        with process(**surroundings) as (made, port):
            guided = {**SHORT, "sampling_params": {"max_new_tokens": 8, "regex": HEAVY}}
            statuses = [answer(port, body).status_code for body in (SHORT, guided, {"text": 1})]
            if statuses != [200, 200, 400]:
                failures.append(f"statuses {statuses}")
            if answer(port, SHORT).json()["output_ids"] != expected:
                failures.append("other tokens")
            made.send_signal(signal.SIGTERM)
            if status := made.wait(60):
                failures.append(f"exit status {status}")
    except (AssertionError, httpx.HTTPError, ValueError) as error:
        failures.append(f"{type(error).__name__}: {error}")
    return {"case": case, "failures": failures}


def few_descriptors(*, files: int = 128, idle: int = 300) -> dict[str, Any]:
    """More idle connections than the server can open files: health answers in time, and all is well when they leave."""
    allow_files(idle + 200)

    failures: list[str] = []
    # Idle ones stay for a while, so that it is not their time-out that helps.
    with process("--keep-alive", "60", "--header-timeout", "60", limits=(f"-n {files}",)) as (made, port):
        connections = [connect(port) for _ in range(idle)]
        time.sleep(0.5)
        began = time.monotonic()
        if not is_ready(port):
            failures.append("health does not answer within 10 s while idle connections take all descriptors")
        took = time.monotonic() - began
        for each in connections:
            each.close()
        time.sleep(1.0)
        failures += [] if is_ready(port) else ["health does not answer after they have left"]
        failures += [] if answer(port, SHORT).status_code == 200 else ["no answer after they have left"]
        failures += [] if made.poll() is None else ["the server has ended"]
    row = {"case": "few descriptors", "descriptors": files, "connections": idle, "health_s": round(took, 2)}
    return {**row, "failures": failures}


def clock_jumps(*, days: float = 400.0) -> dict[str, Any]:
    """The wall clock jumps forth and back: no deadline is missed or made by it."""
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        shift = Path(folder) / "shift"
        shift.write_text("0")
        plugin = ("--logits-processor", "clock=shifted_clock:plain", "--request-timeout", "60", "--keep-alive", "30")
        with Server("tiny", *plugin, environ={"TIRAGE_CHAOS_SHIFT": str(shift)}, folders=(HERE,)) as server:
            expected = server.post("/generate", SHORT).json()["output_ids"]
            for seconds in (86400 * days, -86400 * days, 0.0):
                failures += jumped(server, shift, seconds, expected)
    return {"case": "clock jumps", "days": days, "failures": failures}


def jumped(server: Server, shift: Path, seconds: float, expected: Any) -> list[str]:
    """What goes wrong when the clock is set to other seconds while a request runs."""
    statuses: list[int] = []
    body = {**LONG, "stream": False}
    running = threading.Thread(target=lambda: statuses.append(answer(server.port, body).status_code))
    running.start()
    time.sleep(0.1)
    shift.write_text(str(seconds))
    running.join(60)
    found, health = server.post("/generate", SHORT), server.get("/health")
    if statuses == [200] and found.json().get("output_ids") == expected and health.status_code == 200:
        return []
    return [f"shift of {seconds:g} s: {statuses} {found.status_code} {health.text}"]
