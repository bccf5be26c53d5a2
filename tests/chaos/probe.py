"""A stranger asks for the most that is permitted; a neighbour with a key of its own must not notice.

Each case is one request, or several alike, of the stranger. It fails when the neighbour waits too long for a token,
gets none or others than it gets undisturbed, or when the server takes more memory meanwhile.
"""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from chaos.known_attacks import KNOWN_ATTACKS
from chaos.maxima import WHOLE, Maximum, body_with, growths, is_constraint, largest
from chaos.neighbour import Neighbour, Sighting, worst
from chaos.together import Cover, costly_pairs, narrowed
from hostile import memory
from raw_http import connect, request, status_of
from servers import Server

NEIGHBOUR, STRANGER = "neighbour-key", "stranger-key"
FLAGS = ("--api-key", NEIGHBOUR, "--api-key", STRANGER)
FIRST_S, GAP_S, MEMORY_BYTES = 1.0, 0.25, 64 << 20
KNOWN_S = 15.0
LOOK_S = 0.05
TOGETHER_S = 0.75
"""How long the stranger stays after its answer has begun, where it asks for much together."""
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


def attack(server: Server, route: str, body: Mapping[str, Any], *, seconds: float, after: float = math.inf) -> Attack:
    """The stranger's request, left after so many seconds, or so many `after` its status is there."""
    began, parts = time.monotonic(), b""
    over = began + seconds
    with connect(server.port) as connection:
        try:
            connection.sendall(request(route, body, headers=[f"Authorization: Bearer {STRANGER}"]))
            while (left := over - time.monotonic()) > 0:
                connection.settimeout(left)
                part = connection.recv(1 << 16)
                over = over if parts else min(over, time.monotonic() + after)
                parts = parts + part if len(parts) < 1 << 16 else parts
                if not part:
                    break
        except OSError:  # a reset, or its time is over
            pass
    return Attack(status=status_of(parts), seconds=time.monotonic() - began, answer=parts)


def accepts(server: Server, route: str, body: Mapping[str, Any], *, seconds: float = 5.0) -> bool:
    """Whether a request is not refused within some seconds."""
    return attack(server, route, body, seconds=seconds, after=0.0).status in {0, 200}


def begins(server: Server, route: str, body: Mapping[str, Any]) -> bool:
    """Whether the answer to a request begins; of one that is not streamed, whether it is not refused at once."""
    status = attack(server, route, body, seconds=8.0 if body.get("stream") else 3.0, after=0.0).status
    return status == 200 or (status == 0 and not body.get("stream"))


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
    after: float = math.inf
    attempts: int = 3
    ids: tuple[int, ...] = ()

    def alone(self, seconds: float) -> dict[str, float]:
        """The neighbour's longest waits without a stranger; remembers its tokens."""
        seen = self.neighbour.during(seconds)
        self.ids = seen[-1].ids
        assert [each.failure for each in seen if each.failure] == []
        return {"requests": len(seen), **worst(seen)}

    def run(self, *cases: Case) -> dict[str, Any]:
        """What came of a case; one that fails by the clock is tried again, as the machine may have been busy.

        Then, of several cases that cost as much, it is the next that is tried: what the first has had compiled is kept.
        """
        found: dict[str, Any] = {}
        for attempt, case in zip(range(1, self.attempts + 1), itertools.cycle(cases), strict=False):
            found = {**self._once(case), "attempts": attempt}
            if not found["failures"] or found["peak_mb"] << 20 > self.limits.memory_bytes:
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
            found.append(attack(self.server, case.route, body, seconds=self.seconds, after=self.after))

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


def single(maximum: Maximum, *, copies: int = 1) -> Case:
    """The case of one field at its maximum, sent so many times."""
    route = maximum.growth.route
    return Case(name=maximum.name, route=route, bodies=[body_with(maximum)] * copies)


def known(attempts: int = 1) -> Iterator[list[Case]]:
    """The cases of what was found before, as many of each, with constraints of their own."""
    for name, each in KNOWN_ATTACKS.items():
        yield [
            Case(
                name=name,
                route=each.route,
                bodies=[each.at(number + attempt * each.copies) for number in range(each.copies)],
            )
            for attempt in range(attempts)
        ]


def unseen(maximum: Maximum, *, attempts: int) -> list[Case]:
    """Cases of a constraint just below its maximum, which the search for that has not had compiled; [] of others."""
    compiled = any(maximum.growth.field.split(".")[-1].startswith(name) for name in COMPILED)
    sizes = range(maximum.size - 1, max(maximum.size - 1 - attempts, maximum.size // 2), -1)
    return [single(maximum.at(size)) for size in sizes] if compiled else []


COMPILED = ("json_schema", "regex", "ebnf", "structur", "response_format", "guided", "tools", "stop_regex")
"""Beginnings of the names of fields whose values are compiled, and kept for others who send the same."""
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
    """Every two maxima of different fields: those that multiply first, each part in an order by a seed."""
    two = [(a, b) for a, b in combinations(found, 2) if a.growth.field != b.growth.field]
    random.Random(seed).shuffle(two)
    return sorted(two, key=lambda pair: not any(each.growth.field.split(".")[-1] in MULTIPLES for each in pair))


def joined(server: Server, first: Maximum, second: Maximum) -> Case | None:
    """The case of two fields: one at its maximum, the other as large as is permitted beside it; None for none."""
    route = first.growth.route
    if not accepts(server, route, body_with(first.at(1), second.at(1))):
        return None
    for one, other in ((first, second), (second, first)):
        size = other.size
        while size:
            body = body_with(one, other.at(size))
            if accepts(server, route, body):
                name = f"{one.name} with {other.growth.field} {other.growth.way}={size}"
                return Case(name=name, route=route, bodies=[body])
            size //= 4
    return None


def share_of_limits(row: Mapping[str, Any], limits: Limits) -> float:
    """The largest part of a limit that a case has taken."""
    which = "_spent_ms" if limits.clock == "spent" else "_ms"
    waits = (row[f"first{which}"] / (1000 * limits.first_s), row[f"gap{which}"] / (1000 * limits.gap_s))
    return max(*waits, (row["peak_mb"] << 20) / limits.memory_bytes)


COSTLY = 0.25
"""A maximum that takes this part of a limit by itself is asked for alone with others that do."""
Row = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class RouteProbe:
    """All cases of one route: every maximum, then every two of them, by a probe that runs."""

    probe: Probe
    route: str
    copies: int = 1
    seed: int = 0
    # Rows without failures of an earlier run, by their cases.
    before: Mapping[str, Row] = field(default_factory=dict)
    found: list[Maximum] = field(default_factory=list)
    # By their places in `found`.
    refused: set[tuple[int, int]] = field(default_factory=set)
    costly: set[str] = field(default_factory=set)

    def singles(self) -> Iterator[Row]:
        """A row for each growth of each field."""
        for growth in growths(self.route):
            maximum = largest(growth, lambda body: accepts(self.probe.server, self.route, body))
            if maximum is None:
                yield refused(growth.name)
                continue
            self.found.append(maximum)
            for cases in ([single(maximum, copies=self.copies)], unseen(maximum, attempts=self.probe.attempts)):
                if not cases:
                    continue
                row = self.before.get(cases[0].name) or self.probe.run(*cases)
                if share_of_limits(row, self.probe.limits) > COSTLY:
                    self.costly.add(maximum.name)
                yield row

    def together(self) -> Iterator[Row]:
        """A row for each request of many, with the number of pairs `left`; every pair is in one, or refused."""
        cover = Cover(self.found, self._takes, apart=WHOLE)
        for name, row in self.before.items():
            if "maxima" in row and name.startswith(f"{self.route} "):
                cover.had(names_in_case(name))
                yield row
        probe = replace(self.probe, after=TOGETHER_S)
        for chosen in cover.requests():
            row = probe.run(several(chosen))
            if row["failures"]:
                fewest = narrowed(chosen, lambda part: self._fails(probe, part))
                row["case"] = several(fewest).name
            yield {**row, "maxima": len(chosen), "left": cover.count_left, "refused_pairs": len(cover.refused)}
        self.refused = cover.refused

    def alone(self) -> Iterator[Row]:
        """A row for each pair that is costly, or that is refused at its largest and may be taken at less."""
        costly = costly_pairs(self.found, costly=self.costly, multiply=MULTIPLES)
        for a, b in sorted({*costly, *self.refused}):
            yield self._pair(self.found[a], self.found[b])

    def pairs(self) -> Iterator[Row]:
        """A row for each pair."""
        for first, second in pairs(self.found, seed=self.seed):
            yield self._pair(first, second)

    def _pair(self, first: Maximum, second: Maximum) -> Row:
        case = joined(self.probe.server, first, second)
        if case is not None and case.name in self.before:
            return self.before[case.name]
        return refused(f"{first.name} with {second.name}") if case is None else self.probe.run(case)

    def _takes(self, chosen: Sequence[Maximum]) -> bool:
        if len(chosen) == 2 and all(is_constraint(each) for each in chosen):
            # Refused for being two, whatever their size.
            chosen = [each.at(1) for each in chosen]
        return begins(self.probe.server, self.route, body_with(*chosen))

    def _fails(self, probe: Probe, chosen: Sequence[Maximum]) -> bool:
        """Whether some of a request that failed do, too; refused ones do not."""
        return bool(self._takes(chosen) and replace(probe, attempts=1).run(several(chosen))["failures"])


def several(chosen: Sequence[Maximum]) -> Case:
    """The case of many maxima of one route."""
    name = " with ".join([chosen[0].name, *(f"{m.growth.field} {m.growth.way}={m.size}" for m in chosen[1:])])
    return Case(name=name, route=chosen[0].growth.route, bodies=[body_with(*chosen)])


def names_in_case(name: str) -> set[str]:
    """What a report calls each maximum of the case of several, given what it calls the case."""
    first, *others = name.split(" with ")
    return {first, *(f"{first.split()[0]} {other}" for other in others)}


def refused(name: str) -> Row:
    """The row of what no server takes."""
    return {"case": name, "refused": True, "failures": []}


def fill(probe: Probe) -> None:
    """Takes every place of the engine once: what a server keeps for its places is its own, not that of a request."""
    attack(probe.server, "/generate", KNOWN_ATTACKS["samples in every place"].body, seconds=KNOWN_S)
    at_rest(probe.server)


def probed(
    *,
    routes: Sequence[str],
    limits: Limits,
    together: bool = True,
    copies: int = 1,
    seed: int = 0,
    before: Sequence[Row] = (),
) -> Iterator[tuple[str, Row]]:
    """(part, row): the neighbour alone, what was found before, then for each route every maximum and every two.

    Two that cost little are asked for `together` with many others; without, each two are a request of their own. Cases
    of an earlier run, whose rows are those `before`, are not asked for again unless they failed.
    """
    passed = {row["case"]: {**row, "earlier": True} for row in before if not (row["failures"] or row.get("refused"))}
    with Server("tiny", *FLAGS) as server, Neighbour(server, key=NEIGHBOUR) as neighbour:
        probe = Probe(server=server, neighbour=neighbour, limits=limits)
        fill(probe)
        yield "alone", {"case": "the neighbour alone", **probe.alone(10.0), "failures": []}
        for cases in known(probe.attempts):
            # What they did showed only after a while.
            yield "known attacks", replace(probe, seconds=KNOWN_S).run(*cases)
        for route in routes:
            each = RouteProbe(probe=probe, route=route, copies=copies, seed=seed, before=passed)
            yield from ((f"{route} fields", row) for row in each.singles())
            if together:
                yield from ((f"{route} together", row) for row in each.together())
            yield from ((f"{route} pairs", row) for row in (each.alone() if together else each.pairs()))
