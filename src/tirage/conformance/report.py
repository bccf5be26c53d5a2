"""What became of every vector that a program was asked, and the sum of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tirage.conformance.comparison import WrongField, compared, differences
from tirage.conformance.program import ProgramError, SamplerProgram
from tirage.conformance.vectors import Vector

Kind = Literal["passed", "wrong", "unsupported", "crashed", "timed_out", "invalid", "not_asked"]
FAILURES: tuple[Kind, ...] = ("wrong", "crashed", "timed_out", "invalid", "not_asked")
"""Kinds that fail a program: all but a right answer and `unsupported`, which is to say so."""
MOST_FAILURES = 5
"""So many requests without an answer, one after the other, and the rest are not asked."""
_KINDS: tuple[Kind, ...] = ("passed", *FAILURES, "unsupported")
_TEXT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one vector: its `kind`, the fields that were compared, and what was wrong."""

    id: str
    rule: str
    kind: Kind
    compared: tuple[str, ...] = ()
    differences: tuple[WrongField, ...] = ()
    reason: str = ""

    def __str__(self) -> str:
        why = "; ".join(map(str, self.differences)) or self.reason
        return f"{self.kind.replace('_', ' ')}: {self.id} ({self.rule})" + (f": {why}" if why else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        wrong = [{"field": each.field, "expected": each.expected, "got": each.got} for each in self.differences]
        plain = {"id": self.id, "rule": self.rule, "kind": self.kind, "reason": self.reason}
        return {**plain, "compared": list(self.compared), "differences": wrong}


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """The verdicts on all vectors, in their order."""

    verdicts: Sequence[Verdict] = field(default_factory=tuple)

    @property
    def conforms(self) -> bool:
        """Whether some vectors passed and none failed; vectors that the program does not support decide nothing."""
        counts = self.counts
        return counts["passed"] > 0 and not any(counts[kind] for kind in FAILURES)

    @property
    def counts(self) -> Counter[str]:
        """How many verdicts there are of each kind."""
        return Counter(verdict.kind for verdict in self.verdicts)

    @property
    def failures(self) -> list[Verdict]:
        """The verdicts that fail the program."""
        return [verdict for verdict in self.verdicts if verdict.kind in FAILURES]

    @property
    def compared(self) -> Counter[str]:
        """In how many answers each field was compared."""
        return Counter(name for verdict in self.verdicts for name in verdict.compared)

    def by_rule(self) -> dict[str, Counter[str]]:
        """The counts of each rule of SPEC.md, sorted by its name."""
        rules: dict[str, Counter[str]] = {}
        for verdict in self.verdicts:
            rules.setdefault(verdict.rule, Counter())[verdict.kind] += 1
        return dict(sorted(rules.items()))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: the counts, by rule too, and every verdict."""
        return {
            "conforms": self.conforms,
            "counts": dict(self.counts),
            "compared": dict(self.compared),
            "rules": {rule: dict(counts) for rule, counts in self.by_rule().items()},
            "verdicts": [verdict.to_dict() for verdict in self.verdicts],
        }

    def lines(self, *, most: int = 20) -> list[str]:
        """The report as lines of text: up to `most` failures, a line for each rule, what was compared, and the sum."""
        shown = [str(verdict) for verdict in self.failures[:most]]
        more = len(self.failures) - len(shown)
        return [
            *shown,
            *([f"... and {more} more that failed"] if more > 0 else []),
            *(f"{rule:<7} {_counted(counts)}" for rule, counts in self.by_rule().items()),
            "compared: " + (", ".join(f"{name} {n}" for name, n in self.compared.items()) or "nothing"),
            f"{len(self.verdicts)} vectors: {_counted(self.counts)}",
        ]


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[kind]} {kind.replace('_', ' ')}" for kind in _KINDS if counts[kind]) or "none"


def check_program(
    program: SamplerProgram, vectors: Iterable[Vector], *, told: Callable[[Verdict], None] = lambda verdict: None
) -> ConformanceReport:
    """The report on a program that was asked every vector, one after the other; `told` hears each verdict at once.

    A program that fails is started again for the next vector. After `MOST_FAILURES` failures in a row the others are
    `not_asked`. Raises ParamsError for a program that cannot be started.
    """
    verdicts: list[Verdict] = []
    silent = 0
    for vector in vectors:
        verdict = _not_asked(vector) if silent >= MOST_FAILURES else _asked(program, vector)
        silent = silent + 1 if verdict.kind in ("crashed", "timed_out", "invalid", "not_asked") else 0
        verdicts.append(verdict)
        told(verdict)
    return ConformanceReport(tuple(verdicts))


def _not_asked(vector: Vector) -> Verdict:
    return Verdict(id=vector.id, rule=vector.rule, kind="not_asked", reason=f"{MOST_FAILURES} failures in a row")


def _asked(program: SamplerProgram, vector: Vector) -> Verdict:
    try:
        answer = program.ask(vector.request)
    except ProgramError as error:
        return Verdict(id=vector.id, rule=vector.rule, kind=error.kind, reason=str(error))
    return judged(vector, answer)


def judged(vector: Vector, answer: dict[str, Any]) -> Verdict:
    """The verdict on an answer: `invalid` where it neither has a field that the vector knows nor is `unsupported`."""
    if answer.get("unsupported"):
        reason = str(answer["unsupported"])[:_TEXT]
        return Verdict(id=vector.id, rule=vector.rule, kind="unsupported", reason=reason)
    found, wrong = compared(vector, answer), differences(vector, answer)
    missing = [name for name in ("status", "token") if name in vector.outcome and name not in found]
    if missing or not found:
        needed = ", ".join(missing) or " or ".join(vector.outcome)
        reason = f"an answer must have {needed}, or unsupported with a reason"
        return Verdict(id=vector.id, rule=vector.rule, kind="invalid", reason=reason)
    kind: Kind = "wrong" if wrong else "passed"
    return Verdict(id=vector.id, rule=vector.rule, kind=kind, compared=found, differences=wrong)
