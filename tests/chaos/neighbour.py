"""A client that must not notice the others: it streams small requests without pause, in a process of its own.

As a program (`python -m chaos.neighbour PORT PID PAUSE_S [KEY]`) it prints one JSON line for each request. The clock is
the monotonic one, which all processes of a machine share.

On a machine that does other work too a wait says little of the server. So each is known twice: by the clock, and as
what the server itself has spent of it, which is the processor time of its process in that wait, and never more than
the wait. A server that is alone on a quiet machine spends all of it.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from servers import Server

TESTS = Path(__file__).parents[1]
BODY = {
    "text": "Once upon a time",
    "sampling_params": {"max_new_tokens": 16, "sampling_seed": 7, "ignore_eos": True},
    "stream": True,
}
WAIT_S = 60.0
"""No request of the neighbour may take this long; then it counts as failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What the neighbour saw of one request: when it began and ended, and its longest waits, in seconds.

    `first` and `gap` are by the clock, `first_spent` and `gap_spent` what the server has spent of them.
    """

    began: float
    ended: float
    first: float
    gap: float
    first_spent: float
    gap_spent: float
    failure: str = ""
    ids: tuple[int, ...] = ()


class Watch:
    """Two clocks that are read together: the machine's, and the processor time of a process, in seconds."""

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._tick = os.sysconf("SC_CLK_TCK")

    def read(self) -> tuple[float, float]:
        """Seconds of both clocks."""
        fields = self._stat.read_bytes().rpartition(b")")[2].split()
        return time.monotonic(), (int(fields[11]) + int(fields[12])) / self._tick


def stream_once(
    connection: http.client.HTTPConnection, headers: Mapping[str, str], watch: Watch, times: list[tuple[float, float]]
) -> tuple[int, ...]:
    """The token ids of one request, the times of whose events go to `times`; AssertionError for a broken answer."""
    connection.request("POST", "/generate", json.dumps(BODY).encode(), dict(headers))
    answer = connection.getresponse()
    assert answer.status == 200, f"{answer.status} {answer.read(200)!r}"
    last = b""
    while line := answer.readline():
        if line.startswith(b"data: "):
            times.append(watch.read())
            last = line if line.startswith(b"data: {") else last
    found = json.loads(last[6:])
    assert "error" not in found, found
    assert found["meta_info"]["finish_reason"]["type"] == "length", found["meta_info"]["finish_reason"]
    return tuple(found["output_ids"])


def sight(connection: http.client.HTTPConnection, headers: Mapping[str, str], watch: Watch) -> Sighting:
    """What came of one request; a failure closes the connection."""
    times, ids, failure = [watch.read()], (), ""
    try:
        ids = stream_once(connection, headers, watch, times)
    except (OSError, http.client.HTTPException, AssertionError, ValueError) as error:
        failure = f"{type(error).__name__}: {error}"[:300]
        connection.close()
        times.append(watch.read())
    waits = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(times)]
    spent = [min(wait) for wait in waits]
    return Sighting(
        began=times[0][0],
        ended=times[-1][0],
        first=waits[0][0],
        gap=max((wait[0] for wait in waits[1:]), default=0.0),
        first_spent=spent[0],
        gap_spent=max(spent[1:], default=0.0),
        failure=failure,
        ids=ids,
    )


def main(port: str, pid: str, pause_s: str, key: str = "") -> None:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    connection, watch = http.client.HTTPConnection("127.0.0.1", int(port), timeout=WAIT_S), Watch(int(pid))
    while True:
        seen = sight(connection, headers, watch)
        print(json.dumps(asdict(seen)), flush=True)
        time.sleep(max(float(pause_s), 0.1 if seen.failure else 0.0))


class Neighbour:
    """The neighbour of a server while the `with` block lasts; what it saw can be asked by time.

    It may pause between two requests, as one that never does keeps a processor busy.
    """

    def __init__(self, server: Server, *, key: str = "", pause_s: float = 0.0) -> None:
        environ = {**os.environ, "PYTHONPATH": str(TESTS)}
        given = [str(server.port), str(server.pid), str(pause_s), *([key] if key else [])]
        command = [sys.executable, "-m", "chaos.neighbour", *given]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
        self._seen: list[Sighting] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Neighbour:
        """Returns when it has been served once."""
        self.between(0.0, 0.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def between(self, began: float, ended: float) -> list[Sighting]:
        """Its requests that ran at some time between two times; waits until it has begun another one since."""
        deadline = time.monotonic() + 2 * WAIT_S
        while not self._seen or self._seen[-1].began < ended:
            assert self._process.poll() is None, "the neighbour has ended"
            assert time.monotonic() < deadline, "the neighbour says nothing"
            time.sleep(0.01)
        return [each for each in list(self._seen) if each.ended >= began and each.began <= ended]

    def during(self, seconds: float) -> list[Sighting]:
        """Its requests of the next seconds, one at least."""
        began = time.monotonic()
        time.sleep(seconds)
        return self.between(began, max(time.monotonic(), self._seen[-1].ended))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found: dict[str, Any] = json.loads(line)
            self._seen.append(Sighting(**{**found, "ids": tuple(found["ids"])}))


def worst(seen: Sequence[Sighting]) -> dict[str, float]:
    """The longest waits among sightings, in milliseconds."""
    names = ("first", "gap", "first_spent", "gap_spent")
    return {f"{name}_ms": round(1000 * max((getattr(s, name) for s in seen), default=0.0), 1) for name in names}


if __name__ == "__main__":
    main(*sys.argv[1:])
