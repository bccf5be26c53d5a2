"""A request's parameters, compiled to the steps that every path executes.

`compiled(params)` does what depends on the parameters alone, once; `CompiledParams.lower` adds what depends on the
history. `sample`, `law`, `explain` and every kernel run the steps that come out and know nothing else, so a preset
cannot mean one thing here and another there. What each stage is lowered to stands in `operators/`. SPEC.md rules
S-P1 ... S-P9.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ParamsError
from tirage.fields.rules import Bool, EnumMember, Float, Int, OneOf
from tirage.history import Counts, History
from tirage.operators import ALWAYS, OPERATORS, Edit, Ids, Operator, Step
from tirage.operators.logit_bias import finite
from tirage.operators.masks import BAN
from tirage.operators.min_keep import OPERATOR as MIN_KEEP
from tirage.operators.min_keep import floored
from tirage.operators.operator import MOMENTARY
from tirage.operators.temperature import GREEDY
from tirage.operators.watermark import lower as lower_watermark
from tirage.operators.watermark import prepare as prepare_watermark
from tirage.operators.xtc import COINS
from tirage.params import FIELDS, SamplingParams
from tirage.semantics import Semantics, resolve
from tirage.watermarks import Watermark

_NO_IDS = np.zeros(0, np.int32)
_NO_VALUES = np.zeros(0, np.float32)
_NOTHING = History(_NO_IDS, 0, 0)
_FEW = 64
_LISTS = tuple(
    name for name, spec in FIELDS.items() if not isinstance(spec.rule, (Bool, EnumMember, Float, Int, OneOf))
)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The steps of one row at one moment, with the arrays int32 [n] and float32 [n] that its edits refer to."""

    steps: tuple[Step, ...]
    edit_ids: Ids
    edit_values: NDArray[np.float32]


class _ProgramBuilder:
    """Collects the steps of a Program, and its ids and values, in order."""

    __slots__ = ("ids", "size", "steps", "values")

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.ids: list[Ids] = []
        self.values: list[NDArray[np.float32]] = []
        self.size = 0

    def add(self, step: Step | Edit | None, stage: str) -> None:
        if isinstance(step, Edit):
            self._list(step, stage)
        elif step is not None:
            self.steps.append(step._replace(stage=stage))

    def _list(self, edit: Edit, stage: str) -> None:
        if not edit.ids.size:
            return
        self.steps.append(Step(edit.op, self.size, self.size + edit.ids.size, stage=stage))
        self.ids.append(edit.ids)
        self.values.append(edit.values)
        self.size += edit.ids.size

    def mark(
        self, watermark: Watermark, temperature: float, history: History, filters: tuple[Step, ...]
    ) -> tuple[Step, ...]:
        """The filters with the step of the watermark: the last, and before greedy, which it steers."""
        found = lower_watermark(watermark, temperature, history)
        if found is None:
            return filters
        step, ids = found
        if ids.size:
            step = step._replace(a=self.size, b=self.size + ids.size)
            self.ids.append(ids)
            self.values.append(np.zeros(ids.size, np.float32))
            self.size += ids.size
        at = len(filters) - bool(filters and filters[-1].op is GREEDY)
        return (*filters[:at], step._replace(stage="watermark"), *filters[at:])

    def program(self, filters: tuple[Step, ...]) -> Program:
        steps = (*self.steps, *filters)
        if not self.ids:
            return Program(steps, _NO_IDS, _NO_VALUES)
        return Program(steps, np.concatenate(self.ids), np.concatenate(self.values))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Reader:
    """Calls the functions of operators with what they read, by name.

    `known` is what those return that read nothing of the moment, which are called once: it grows.
    """

    params: SamplingParams
    semantics: Semantics
    history: History = field(default_factory=lambda: _NOTHING)
    step: int = 0
    state: float | None = None
    logprob: float = 0.0
    chance: float = 0.0
    known: dict[tuple[str, str], Any] = field(default_factory=dict)

    def call(self, operator: Operator, name: str) -> Any:
        """What the operator's `lower`, `bans` or `moves` returns."""
        key = operator.name, name
        if key in self.known:
            return self.known[key]
        function: Callable[..., Any] = getattr(operator, name)
        found = function(**{key: self._value(key) for key in operator.reads[name]})
        if MOMENTARY.isdisjoint(operator.reads[name]):
            self.known[key] = found
        return found

    def _value(self, name: str) -> Any:
        if name in MOMENTARY:
            return getattr(self, name)
        return getattr(self.semantics if name in OPTIONS else self.params, name)


OPTIONS = frozenset(Semantics.__dataclass_fields__)
"""The names that operators read from the semantics; others are fields of SamplingParams."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompiledParams:
    """What one SamplingParams asks of every row that uses it, independent of history and vocabulary.

    `filters` are the steps that cut candidates. `bias` holds the tokens with a finite bias, int32 [n] and float32 [n];
    `banned` int32 [n] those with -inf; `allowed` int32 [n], or None, the only tokens that can be drawn; `stop_ids`
    int32 [n] the stop tokens. `highest_id` names the parameter that mentions the highest token id, and that id. `coin`
    is XTC's share in units of 2^-32. `readers` are the parameters whose effect depends on the tokens so far,
    `needs_counts` says whether a penalty reads the history's counts, and `fixed` is the whole Program where the
    history cannot change it, else None. `carrier` is the stage whose rows carry a state from token to token, which is
    `initial_state` before the first; both are None where no stage does. `known` is what operators said that read no
    history.
    """

    params: SamplingParams
    semantics: Semantics
    filters: tuple[Step, ...]
    bias: tuple[Ids, NDArray[np.float32]]
    banned: Ids
    allowed: Ids | None
    stop_ids: Ids
    highest_id: tuple[str, int]
    coin: int
    needs_counts: bool
    readers: tuple[str, ...]
    carrier: Operator | None = None
    initial_state: float | None = None
    fixed: Program | None = None
    known: dict[tuple[str, str], Any] = field(default_factory=dict)

    def check(self, vocab_size: int) -> None:
        """Raise ParamsError when the parameters name a token that the vocabulary does not have."""
        name, token = self.highest_id
        if token >= vocab_size:
            raise ParamsError(
                f"{name} must lie in [0, {vocab_size}), got {token}; the logits have {vocab_size} columns"
            )

    def check_history(self) -> None:
        """Raise ParamsError for what cannot take effect without a history."""
        for name in self.readers:
            raise ParamsError(
                f"{name} must come with the tokens so far, got history None; "
                "pass history=[((), ())] for none, one pair per row"
            )

    def counts(self, history: History) -> Counts | None:
        """The counts that the penalties read; None when none does."""
        return history.counts(self.semantics.penalty_window) if self.needs_counts else None

    @property
    def keeps_logits(self) -> bool:
        """Whether filters see the model's own logits, but for those of tokens that are banned."""
        return self.fixed is not None and all(step.op.is_filter or step.op is BAN for step in self.fixed.steps)

    @property
    def is_alone(self) -> bool:
        """Whether no stages run but those of `BESIDE_MIROSTAT`; what forbids tokens holds."""
        return _is_alone(self.params, self.semantics)

    @property
    def needs_chances(self) -> bool:
        """Whether the state moves by what the row's chances said of a token."""
        return self.carrier is not None and "chance" in self.carrier.reads["advance"]

    def next_state(self, state: float, logprob: float, chance: float = math.nan) -> float:
        """The state after a token that was drawn in `state` with this sampled logprob, and this chance (S-C1)."""
        assert self.carrier is not None
        reader = _Reader(params=self.params, semantics=self.semantics, state=state, logprob=logprob, chance=chance)
        return reader.call(self.carrier, "advance")

    def lower(self, history: History, step: int, state: float | None = None) -> Program:
        """The Program of a row with this history at this step, which carries this `state`, by default the initial."""
        if self.fixed is not None:
            return self.fixed
        state = self.initial_state if state is None else state
        reader = _Reader(
            params=self.params, semantics=self.semantics, known=self.known, history=history, step=step, state=state
        )
        builder = _ProgramBuilder()
        for operator in masks_of(self.semantics):
            ids = reader.call(operator, "bans")
            if ids is not None:
                builder.add(Edit(BAN, ids, np.zeros(ids.size, np.float32)), operator.name)
        for operator in _stages(reader, filters=False):
            builder.add(reader.call(operator, "lower"), operator.name)
        filters = self.filters_at(state)
        watermark = self.params.watermark
        if watermark is None:
            return builder.program(filters)
        return builder.program(builder.mark(watermark, self.params.temperature, history, filters))

    def filters_at(self, state: float | None) -> tuple[Step, ...]:
        """The filter steps of a row that carries this `state`."""
        if self.carrier is None:
            return self.filters
        reader = _Reader(params=self.params, semantics=self.semantics, known=self.known, state=state)
        return _filters(reader)


BESIDE_MIROSTAT = ("logit_bias", "temperature", "mirostat")
"""The stages of a row with Mirostat where its semantics says that the others do not run (S-O14)."""

MASKS = ("logit_bias", "sequence_bias", "bad_words", "no_repeat_ngram", "min_tokens")
"""The stages that forbid ids, in the order in which their bans lead the steps: nothing can revive a token (S-P2)."""


def masks_of(semantics: Semantics) -> Iterator[Operator]:
    """The operators that may forbid ids under this semantics, in the order of their bans."""
    always = {operator.name for operator in ALWAYS}
    return (OPERATORS[name] for name in MASKS if name in always or name in semantics.stages)


def _stages(reader: _Reader, *, filters: bool) -> Iterator[Operator]:
    """The stages of a row that are edits, or those that are filters, in order."""
    alone = _is_alone(reader.params, reader.semantics)
    names = [name for name in reader.semantics.stages if not alone or name in BESIDE_MIROSTAT]
    return (o for name in names if (o := OPERATORS[name]).is_filter == filters)


def _is_alone(params: SamplingParams, semantics: Semantics) -> bool:
    return params.mirostat > 0 and semantics.mirostat_with == "temperature"


def _filters(reader: _Reader) -> tuple[Step, ...]:
    """The filter steps, off ones left out; T = 0 ends the list where the temperature stage stands (S-P3)."""
    steps: list[Step] = []
    least = 0
    if reader.params.temperature == 0 and reader.semantics.is_greedy_first:
        return (Step(GREEDY, stage="temperature"),)
    for operator in _stages(reader, filters=True):
        least = reader.params.min_keep if operator is MIN_KEEP else least
        step = reader.call(operator, "lower")
        if step is not None:
            steps.append(floored(step._replace(stage=operator.name), least))
        if step is not None and step.op is GREEDY:
            break
    return tuple(steps)


# --- compiled once ------------------------------------------------------------------------------------------------


def compiled(params: SamplingParams) -> CompiledParams:
    """The CompiledParams of `params`; equal parameters share one, and an object remembers its own."""
    try:
        return params.memo
    except AttributeError:
        # What is long is remembered by its own object alone: thousands of such, each with a seed of its own, are much.
        build = _compiled.__wrapped__ if _is_long(params) else _compiled
        object.__setattr__(params, "memo", build(params))
        return params.memo


def _is_long(params: SamplingParams) -> bool:
    """Whether parameters hold more than a few entries or short texts, in whatever field."""
    if params.guided_decoding is not None or params.extra_args or params.logits_processors:
        return True
    return sum(_length(getattr(params, name)) for name in _LISTS) > _FEW


def _length(value: Any) -> int:
    """The entries of a list, a mapping or a list of lists, a text counted by its pieces of 32 characters."""
    if isinstance(value, str):
        return len(value) // 32
    if isinstance(value, tuple):
        return len(value) if len(value) > _FEW else len(value) + sum(map(_length, value))
    return len(value) if isinstance(value, Mapping) else 0


# Requests with a seed each have parameters of their own, of some KiB.
@lru_cache(maxsize=1024)
def _compiled(params: SamplingParams) -> CompiledParams:
    semantics = resolve(params.semantics)
    if params.watermark is not None:
        prepare_watermark(params.watermark)
    carrier, state = _carried(params, semantics)
    reader = _Reader(params=params, semantics=semantics, state=state)
    filters = _filters(reader)
    draft = CompiledParams(
        params=params,
        semantics=semantics,
        filters=filters,
        bias=finite(params.logit_bias),
        banned=_ban_of(reader, "logit_bias"),
        allowed=None if params.allowed_token_ids is None else np.array(params.allowed_token_ids, np.int32),
        stop_ids=np.array(sorted(params.all_stop_token_ids), np.int32),
        highest_id=_highest_id(params),
        coin=next((s.a for s in filters if s.op.base in COINS), 0),
        needs_counts=any(_counts(reader, operator) for operator in _stages(reader, filters=False)),
        readers=tuple(n for n, spec in FIELDS.items() if spec.reads_history(getattr(params, n))),
        carrier=carrier,
        initial_state=state,
    )
    return draft if carrier is not None or _moves(reader) else replace(draft, fixed=draft.lower(_NOTHING, 0), known={})


def _carried(params: SamplingParams, semantics: Semantics) -> tuple[Operator | None, float | None]:
    """The stage whose rows carry a state, and that state before the first token; (None, None) where none does."""
    reader = _Reader(params=params, semantics=semantics)
    for name in semantics.stages:
        state = reader.call(OPERATORS[name], "initial")
        if state is not None:
            return OPERATORS[name], state
    return None, None


def _ban_of(reader: _Reader, name: str) -> Ids:
    ids = reader.call(OPERATORS[name], "bans")
    return _NO_IDS if ids is None else ids


def _counts(reader: _Reader, operator: Operator) -> bool:
    """Whether the stage is on and reads the history's counts."""
    if not any(op.counts for op in operator.operations):
        return False
    return reader.call(operator, "lower") is not None


def _moves(reader: _Reader) -> bool:
    """Whether the steps themselves, not only the counts they read, change as a request goes on."""
    operators = [*ALWAYS, *(OPERATORS[name] for name in reader.semantics.stages)]
    return reader.params.watermark is not None or any(
        reader.call(operator, "moves") for operator in operators if operator.moves is not None
    )


def _highest_id(params: SamplingParams) -> tuple[str, int]:
    """The parameter that names the highest token id, and that id; ("", -1) when none does."""
    found = [(name, spec.rule.highest_id(getattr(params, name))) for name, spec in FIELDS.items()]
    return max(found, key=lambda pair: pair[1], default=("", -1))
