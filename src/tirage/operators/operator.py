"""What an operator is: a stage of the pipeline, described once, from the parameter to the words of `explain`.

A stage is lowered to steps; a step is an operation with integer operands. Backends run operations and know no stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tirage.history import History
from tirage.operators.row import RowState, mass

Ids = NDArray[np.int32]
"""int32 [n]: token ids."""

END = 0
"""The code behind the last step of a packed program."""
FIRST_FILTER = 64
"""Codes of filters begin here; those below are edits of logits."""
_EDIT_CODES, _FILTER_CODES = count(END + 1), count(FIRST_FILTER)

Kind = Literal["static", "float", "int", "word", "long"]
"""What an operand is on a device: part of the compiled program, float32 from its bits, int32, uint32, or two uint32."""


class Operation(int):
    """What a step does, and the integer that stands for it in packed programs.

    `operands` names up to five integer operands with their kinds: `"k:int ties:static"`. `run` is the plain rule: it
    changes a RowState by a Step. `counts`: it reads the history's token counts. `lists`: its operands a and b are
    positions in the arrays of edits. `weight_bound`, for filters that keep what has at least some weight: that weight,
    from (operands, mass of the set, largest weight in it). `base` is the operation that it does with something besides;
    itself for all others.
    """

    name: str
    operands: tuple[tuple[str, Kind], ...]
    run: Callable[[RowState, Step], None]
    counts: bool
    lists: bool
    weight_bound: Callable[[tuple[int, ...], int, int], int] | None
    base: Operation

    def __new__(
        cls,
        name: str,
        operands: str = "",
        *,
        run: Callable[[RowState, Step], None],
        edit: bool = False,
        counts: bool = False,
        lists: bool = False,
        weight_bound: Callable[[tuple[int, ...], int, int], int] | None = None,
        base: Operation | None = None,
    ) -> Operation:
        self = super().__new__(cls, next(_EDIT_CODES if edit else _FILTER_CODES))
        self.name, self.run, self.counts, self.lists, self.weight_bound = name, run, counts, lists, weight_bound
        self.base = base or self
        self.operands = tuple(tuple(operand.split(":")) for operand in operands.split())  # type: ignore[assignment]
        OPERATIONS[int(self)] = self
        return self

    def __repr__(self) -> str:
        return self.name

    @property
    def is_filter(self) -> bool:
        """Whether it cuts the set of candidates; otherwise it changes logits."""
        return self >= FIRST_FILTER


def keep_by_weight(row: RowState, step: Step) -> None:
    """The plain rule of a filter with a `weight_bound`: tokens of at least that weight stay, and the likeliest."""
    assert step.op.weight_bound is not None
    w = row.w()
    row.keep((w >= step.op.weight_bound(step.operands, mass(w), int(w.max()))) | row.is_top())


OPERATIONS: dict[int, Operation] = {}
"""Every operation by its code."""


class Step(NamedTuple):
    """An operation with its operands, and the stage that it belongs to."""

    op: Operation
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    e: int = 0
    stage: str = ""

    @property
    def operands(self) -> tuple[int, ...]:
        """(a, b, c, d, e)."""
        return self[1:6]


class Edit(NamedTuple):
    """An operation on listed tokens: ids int32 [n] and float32 values [n]."""

    op: Operation
    ids: Ids
    values: NDArray[np.float32]


class Moment(Protocol):
    """A row that has just run a step, as `explain` sees it."""

    @property
    def params(self) -> Any:
        """The SamplingParams of the request."""
        ...

    @property
    def semantics(self) -> Any:
        """Its Semantics."""
        ...

    @property
    def history(self) -> History:
        """Its tokens so far."""
        ...

    @property
    def at(self) -> int:
        """The step of the request: how many tokens came before this one."""
        ...

    @property
    def step(self) -> Step:
        """The step that ran."""
        ...

    @property
    def row(self) -> RowState:
        """The row after it."""
        ...

    @property
    def left(self) -> int:
        """How many candidates are left."""
        ...

    @property
    def removed(self) -> int:
        """How many candidates it removed."""
        ...

    @property
    def top_share(self) -> float:
        """Probability of the most likely candidate before the step."""
        ...

    @property
    def listed(self) -> int:
        """How many tokens an Edit lists."""
        ...


def candidates_left(moment: Moment) -> str:
    """The note of a stage that has nothing better to say."""
    return f"{counted(moment.left, 'token')} left"


def counted(n: int, what: str, many: str = "") -> str:
    """`1 token`, `2 tokens`, with thousands apart."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {many or what + 's'}"


MOMENTARY = frozenset({"history", "step", "state", "logprob", "chance"})
"""What functions of operators may read besides parameters and options: it belongs to one moment of a row."""


def _nothing(**_: Any) -> None:
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class Operator:
    """One stage: what it is called, what it reads, what it is lowered to, and how it is explained and tested.

    `fields` declares its parameters (`tirage.fields.record.param`), the one that switches it on first. `rule` is the
    rule of SPEC.md. For tests, `examples` has values to try of each parameter, and `gentle` switches the stage on so
    that several tokens survive it and all other stages together.

    `lower` and `bans` take, by name, what they read: fields of SamplingParams, options of Semantics, `history`, `step`.
    `lower` returns a Step, an Edit, or None when the stage is off; `bans` the ids that the stage forbids: hard masks,
    which run before everything else (S-P2). `note` and `ban_note` say in words what the step, or the ban, did.
    `moves`, of stages that read `history` or `step`: whether their steps change as the text grows. `has_steps` is
    False for one that changes what the steps of other stages do.

    A stage whose rows carry a number from token to token has `initial`, that number before the first token or None when
    the stage is off, and `advance`, the number after a token: `lower` and `advance` may read it as `state`,
    and `advance` the token's sampled logprob as `logprob`, and as `chance` what RowState.chances said of it (S-C1).
    """

    name: str
    rule: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    examples: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    gentle: Mapping[str, Any] = field(default_factory=dict)
    operations: tuple[Operation, ...] = ()
    lower: Callable[..., Step | Edit | None] = _nothing
    bans: Callable[..., Ids | None] = _nothing
    moves: Callable[..., bool] | None = None
    initial: Callable[..., float | None] = _nothing
    advance: Callable[..., float | None] = _nothing
    note: Callable[[Moment], str] = candidates_left
    ban_note: Callable[[Moment], str] = candidates_left
    has_steps: bool = True

    @cached_property
    def is_filter(self) -> bool:
        """Whether it cuts the set of candidates; otherwise it changes or forbids logits."""
        return any(op.is_filter for op in self.operations)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All names that its functions read, each once."""
        return tuple(dict.fromkeys(name for names in self.reads.values() for name in names))

    @cached_property
    def governed_by(self) -> tuple[str, ...]:
        """The parameters that it declares, else those that it reads: the first switches it on."""
        return tuple(self.fields) or tuple(name for name in self.names if name not in MOMENTARY)

    @cached_property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """The names that each of its functions reads."""
        functions = {"lower": self.lower, "bans": self.bans, "moves": self.moves or _nothing}
        functions |= {"initial": self.initial, "advance": self.advance}
        return {name: _names(function) for name, function in functions.items()}


def _names(function: Callable[..., Any]) -> tuple[str, ...]:
    # `inspect.signature` would take milliseconds of the first draw for all operators.
    code = function.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
