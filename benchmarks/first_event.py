"""How long until the first event of a stream, and does it take longer than at an earlier commit?

python -m benchmarks.first_event 64c7966 [--turns 12] [--requests 25]

Both commits serve the bundled model, each in a process of its own; one request runs at a time, on a connection that
stays open, and the commits take turns.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.before_after import checkout, git
from benchmarks.harness import save

_FEW = {"seed": 7, "max_tokens": 1, "ignore_eos": True, "stream": True}
ROUTES = {
    "/generate": {
        "text": "Once upon a time",
        "sampling_params": {"max_new_tokens": 1, "sampling_seed": 7, "ignore_eos": True},
        "stream": True,
    },
    "/v1/completions": {"prompt": "Once upon a time", **_FEW},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Tell me a story"}], **_FEW},
}
_STARTUP_S = 60


class Served:
    """`tirage serve` of a tree, and a connection to it."""

    def __init__(self, tree: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
        # Kernels that are not in the cache would be compiled beside the first requests.
        subprocess.run([sys.executable, "-c", "import tirage; tirage.warmup()"], cwd=tree, env=environment, check=True)
        command = [sys.executable, "-m", "tirage", "serve", "--port", str(port)]
        self._process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._await_ready(time.monotonic() + _STARTUP_S)

    def first_ms(self, route: str) -> float:
        """Milliseconds from a request to the first event that holds text."""
        body, begun = json.dumps(ROUTES[route]).encode(), time.perf_counter()
        self._connection.request("POST", route, body, {"Content-Type": "application/json"})
        answer, first = self._connection.getresponse(), None
        while line := answer.readline():
            if first is None and _has_text(line):
                first = 1000 * (time.perf_counter() - begun)
        if first is None:
            raise RuntimeError(f"{route} answered {answer.status} and no text")
        return first

    def close(self) -> None:
        """Ends the server."""
        self._connection.close()
        self._process.terminate()
        self._process.wait()

    def _await_ready(self, deadline: float) -> None:
        while True:
            try:
                self._connection.request("GET", "/health")
                answer = self._connection.getresponse()
                answer.read()
                if answer.status == 200:
                    return
            except OSError:
                pass
            finally:
                # The server does not wait for as long as the other one takes to start.
                self._connection.close()
            if time.monotonic() > deadline:
                raise RuntimeError("the server is not ready")
            time.sleep(0.1)


def _has_text(line: bytes) -> bool:
    """Whether a line is an event with text: the first of a chat has only the role."""
    if not line.startswith(b"data: {"):
        return False
    event = json.loads(line[6:])
    return bool(event.get("text") or any(_text(choice) for choice in event.get("choices", ())))


def _text(choice: dict[str, Any]) -> str:
    return choice.get("text") or choice.get("delta", {}).get("content") or ""


def turns(servers: Sequence[Served], count: int, requests: int) -> Iterator[tuple[str, list[float]]]:
    """The route and the medians of each server, in milliseconds, of each turn."""
    for route in ROUTES:
        for server in servers:
            for _ in range(requests):
                server.first_ms(route)
    for _ in range(count):
        for route in ROUTES:
            yield route, [statistics.median(server.first_ms(route) for _ in range(requests)) for server in servers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="the commit before the change")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--requests", type=int, default=25)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trees = [checkout(Path(folder) / "before", given.base), checkout(Path(folder) / "after", "HEAD")]
        servers: list[Served] = []
        try:
            servers += [Served(tree) for tree in trees]
            taken = list(turns(servers, given.turns, given.requests))
        finally:
            for server in servers:
                server.close()
            for tree in trees:
                git("worktree", "remove", "--force", str(tree))
    save("first_event", [row(route, taken) for route in ROUTES], notes=f"ms, medians of turns against {given.base}")


def row(route: str, taken: Sequence[tuple[str, Sequence[float]]]) -> dict[str, Any]:
    """What came of one route."""
    pairs = [(before, after) for name, (before, after) in taken if name == route]
    before, after = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(after / before for before, after in pairs)
    return {"route": route, "before_ms": round(before, 2), "after_ms": round(after, 2), "ratio": round(ratio, 3)}


if __name__ == "__main__":
    main()
