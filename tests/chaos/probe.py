"""A stranger asks for the most that is permitted; a neighbour with a key of its own must not notice.

Each case is one request, or several alike, of the stranger. It fails when the neighbour waits too long for a token,
gets none or others than it gets undisturbed, or when the server takes more memory meanwhile.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from chaos.known_attacks import KNOWN_ATTACKS
from chaos.maxima import Growth, Maximum, body_of, growths, largest
from chaos.neighbour import Neighbour, Sighting, worst
from hostile import memory
from raw_http import connect, request, status_of
from servers import Server

NEIGHBOUR, STRANGER = "neighbour-key", "stranger-key"
FLAGS = ("--api-key", NEIGHBOUR, "--api-key", STRANGER)
FIRST_S, GAP_S, MEMORY_BYTES = 1.0, 0.25, 64 << 20
KNOWN_S = 15.0
LOOK_S = 0.05
REST_S = 20.0
"""How long the server may go on with a request whose client has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the neighbour must not exceed, and by which clock: "wall", "spent" by the server, or "none".

    By "spent" a wait by the wall clock fails too where it is ten times the limit, as a server that sleeps spends
    nothing.
    """

    clock: str = "wall"
    first_s: float = FIRST_S
    gap_s: float = GAP_S
    memory_bytes: int = MEMORY_BYTES

    def waits(self, seen: Sequence[Sighting]) -> list[str]:
        """The waits that are too long, in words."""
        if self.clock == "none":
            return []
        found = []
        for name, limit in (("first", self.first_s), ("gap", self.gap_s)):
            wall, spent = (max(getattr(each, which) for each in seen) for which in (name, f"{name}_spent"))
            if (spent if self.clock == "spent" else wall) > limit or wall > 10 * limit:
                found.append(f"{name} of {1000 * wall:.0f} ms, {1000 * spent:.0f} ms of them the server's")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """What the stranger got: the status, 0 for none before it left, and how long it stayed."""

    status: int
    seconds: float
    answer: bytes = b""


def attack(server: Server, route: str, body: Mapping[str, Any], *, seconds: float, read: bool = True) -> Attack:
    """The stranger's request, left after so many seconds; without `read` as soon as its status is there."""
    began, parts = time.monotonic(), b""
    with connect(server.port) as connection:
        try:
            connection.sendall(request(route, body, headers=[f"Authorization: Bearer {STRANGER}"]))
            while (left := began + seconds - time.monotonic()) > 0:
                connection.settimeout(left)
                part = connection.recv(1 << 16)
                parts = parts + part if len(parts) < 1 << 16 else parts
                if not part or (not read and parts):
                    break
        except OSError:  # a reset, or its time is over
            pass
    return Attack(status=status_of(parts), seconds=time.monotonic() - began, answer=parts)


def accepts(server: Server, route: str, body: Mapping[str, Any], *, seconds: float = 5.0) -> bool:
    """Whether a request is not refused within some seconds."""
    return attack(server, route, body, seconds=seconds, read=False).status in {0, 200}


def at_rest(server: Server) -> float:
    """Waits until the stranger's requests are over; how long that took, in seconds."""
    began = time.monotonic()
    names = ("tirage_requests_in_flight", "tirage_engine_running")
    while time.monotonic() < began + REST_S:
        # The neighbour's own request is one of them.
        if all(server.metric(name) <= 1 for name in names):
            break
        time.sleep(0.05)
    return time.monotonic() - began


class Memory:
    """How much more memory a server holds while the `with` block lasts, in bytes: at most, and at its end."""

    def __init__(self, server: Server) -> None:
        self._server, self._before = server, memory(server)
        self.peak = self.grown = 0
        self._over = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Memory:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._reader.join()
        self._look()

    def _look(self) -> None:
        self.grown = memory(self._server) - self._before
        self.peak = max(self.peak, self.grown)

    def _read(self) -> None:
        while not self._over.wait(LOOK_S):
            self._look()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the stranger sends at once, by name: bodies for one route."""

    name: str
    route: str
    bodies: Sequence[Mapping[str, Any]]


@dataclass(slots=True, kw_only=True)
class Probe:
    """A server with a neighbour on it, and what the neighbour gets undisturbed."""

    server: Server
    neighbour: Neighbour
    limits: Limits
    seconds: float = 3.0
    attempts: int = 3
    ids: tuple[int, ...] = ()

    def alone(self, seconds: float) -> dict[str, float]:
        """The neighbour's longest waits without a stranger; remembers its tokens."""
        seen = self.neighbour.during(seconds)
        self.ids = seen[-1].ids
        assert [each.failure for each in seen if each.failure] == []
        return {"requests": len(seen), **worst(seen)}

    def run(self, case: Case) -> dict[str, Any]:
        """What came of a case; one that fails by the clock is tried again, as the machine may have been busy."""
        found: dict[str, Any] = {}
        for attempt in range(1, self.attempts + 1):
            found = {**self._once(case), "attempts": attempt}
            if not found["failures"]:
                break
        return found

    def _once(self, case: Case) -> dict[str, Any]:
        with Memory(self.server) as held:
            began = time.monotonic()
            attacks = self._attacks(case)
            ended = time.monotonic()
            rest = at_rest(self.server)
        seen = self.neighbour.between(began, ended)
        return {
            "case": case.name,
            "status": sorted({each.status for each in attacks}),
            "seconds": round(ended - began, 2),
            "rest_s": round(rest, 2),
            "grown_mb": held.grown >> 20,
            "peak_mb": held.peak >> 20,
            **worst(seen),
            "failures": [*self._failures(seen, held.peak), *failures_of(attacks, rest)],
        }

    def _attacks(self, case: Case) -> list[Attack]:
        found: list[Attack] = []

        def one(body: Mapping[str, Any]) -> None:
            found.append(attack(self.server, case.route, body, seconds=self.seconds))

        running = [threading.Thread(target=one, args=(body,)) for body in case.bodies]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return found

    def _failures(self, seen: Sequence[Sighting], peak: int) -> list[str]:
        found, limits = [], self.limits
        for each in seen:
            if each.failure:
                found.append(f"neighbour: {each.failure}")
            elif each.ids != self.ids:
                found.append("neighbour: other tokens")
        found += limits.waits(seen)
        if peak > limits.memory_bytes:
            found.append(f"{peak >> 20} MB more memory")
        return found


def failures_of(attacks: Sequence[Attack], rest: float) -> list[str]:
    """What is wrong with the stranger's own answers: a 5xx but 503 and 504, or work that outlives its client."""
    found = [f"status {each.status}: {each.answer[-200:]!r}" for each in attacks if each.status in {500, 501, 502}]
    return [*found, *([f"still at work {rest:.0f} s after its client left"] if rest >= REST_S else [])]


def maxima(server: Server, routes: Sequence[str]) -> Iterator[tuple[Growth, Maximum | None]]:
    """Each growth of each field with its largest size that the server accepts, None for none."""
    for route in routes:
        for growth in growths(route):
            yield growth, largest(growth, lambda body, route=route: accepts(server, route, body))


def single(maximum: Maximum, *, copies: int = 1) -> Case:
    """The case of one field at its maximum, sent so many times."""
    route = maximum.growth.route
    return Case(name=maximum.name, route=route, bodies=[body_of(route, maximum.at(maximum.size))] * copies)


def known() -> Iterator[Case]:
    """The cases of what was found before."""
    for name, each in KNOWN_ATTACKS.items():
        yield Case(name=name, route=each.route, bodies=[each.at(number) for number in range(each.copies)])


MULTIPLES = (
    "n",
    "best_of",
    "beam_width",
    "text",
    "prompt",
    "input_ids",
    "top_logprobs_num",
    "logprobs",
    "top_logprobs",
)
"""Fields that multiply the work of the others: their pairs come first."""


def pairs(found: Sequence[Maximum], *, seed: int = 0) -> list[tuple[Maximum, Maximum]]:
    """Every two maxima of different fields of one route: those that multiply first, each part in an order by a seed."""
    two = [
        (a, b)
        for a, b in combinations(found, 2)
        if a.growth.route == b.growth.route and a.growth.field != b.growth.field
    ]
    random.Random(seed).shuffle(two)
    return sorted(two, key=lambda pair: not any(each.growth.field.split(".")[-1] in MULTIPLES for each in pair))


def joined(server: Server, first: Maximum, second: Maximum) -> Case | None:
    """The case of two fields: one at its maximum, the other as large as is permitted beside it; None for none."""
    route = first.growth.route
    for one, other in ((first, second), (second, first)):
        size = other.size
        while size:
            body = body_of(route, one.at(one.size), other.at(size))
            if accepts(server, route, body):
                name = f"{one.name} with {other.growth.field} {other.growth.way}={size}"
                return Case(name=name, route=route, bodies=[body])
            size //= 4
    return None


def printed(row: Mapping[str, Any]) -> None:
    """Prints a row, so that a long run can be watched."""
    print(json.dumps(row), flush=True)


def probed(
    *,
    routes: Sequence[str],
    minutes: float,
    limits: Limits,
    copies: int = 1,
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """Rows of the probe: the neighbour alone, what was found before, every maximum, then pairs for so many minutes."""
    over = time.monotonic() + 60 * minutes
    with Server("tiny", *FLAGS) as server, Neighbour(server, key=NEIGHBOUR) as neighbour:
        probe = Probe(server=server, neighbour=neighbour, limits=limits)
        yield {"case": "the neighbour alone", **probe.alone(10.0), "failures": []}
        for case in known():
            # What they did showed only after a while.
            yield replace(probe, seconds=KNOWN_S).run(case)
        found: list[Maximum] = []
        for growth, maximum in maxima(server, routes):
            if maximum is None:
                yield {"case": growth.name, "refused": True, "failures": []}
                continue
            found.append(maximum)
            yield probe.run(single(maximum, copies=copies))
        for first, second in pairs(found, seed=seed):
            if time.monotonic() > over:
                return
            case = joined(server, first, second)
            yield (
                {"case": f"{first.name} with {second.name}", "refused": True, "failures": []}
                if case is None
                else (probe.run(case))
            )
