"""Watches one row run through its steps and writes down what each stage did."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tirage.backends.numpy.distribution import RowInput
from tirage.operators import Step
from tirage.operators.row import OK, RowState
from tirage.operators.temperature import GREEDY
from tirage.sampling_batch import SamplingRow
from tirage.tracing import notes
from tirage.tracing.records import Removed, Stage, TokenStep
from tirage.tracing.slots import Slot, slots
from tirage.tracing.snapshot import Snapshot
from tirage.tracing.texts import TokenTexts

_EXAMPLES = 5


class Followed(NamedTuple):
    """What one stage did to the followed tokens, one array entry each."""

    label: str
    logit_before: NDArray[np.float32]
    logit_after: NDArray[np.float32]
    probability_before: NDArray[np.float64]
    probability_after: NDArray[np.float64]
    cumulative: NDArray[np.float64]
    kept: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What to watch: a request, with or without the mask that is checked after the draw."""

    state: SamplingRow
    request: RowInput
    coin: bool
    check: bool
    masks: Mapping[str, NDArray[np.bool_]]
    texts: TokenTexts


class Recorder:
    """The stages of one run; `stages` holds all of them, and after `follow` `followed` those that were asked for."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.stages: list[Stage] = []
        self.followed: list[Followed] = []
        self._params = watch.state.params
        self._semantics = watch.state.compiled.semantics
        self._waiting = deque(slots(self._params, self._semantics))
        self._input = Snapshot.of_logits(watch.request.logits)
        self._now = self._input.widened()
        # The label of each stage that was asked for, with what it found and left.
        self._moments: list[tuple[str, Snapshot, Snapshot]] = []
        # The last ranking of all candidates, which filters that remove nothing leave as it is.
        self._ranked: tuple[Snapshot, NDArray[np.int64]] | None = None
        self._ended = ""

    def run(self) -> RowState:
        """The finished row, after everything that happened to it was recorded."""
        request, coin, check = self.watch.request, self.watch.coin, self.watch.check
        self._add(self._waiting.popleft(), self._input, notes.INPUT)
        self._hard_masks()
        row = request.run(coin=coin, check=check, observe=self._observe)
        if row.status != OK:
            self._ended = notes.ENDED_BAD
        while self._waiting:
            self._idle(self._waiting.popleft())
        return row

    def _hard_masks(self) -> None:
        """The masks that are applied before the first step, one after the other."""
        x = self._now.x.copy()
        for name, allowed in self.watch.masks.items():
            slot = self._take(partial(_is_called, name))
            if name == "mask" and not self.watch.check:
                self._skip(slot, notes.CHECKED_LATER)
                continue
            x[~allowed] = -np.inf
            self._add(slot, Snapshot.of_logits(x), notes.hard_mask(name, allowed))

    def _observe(self, step: Step, row: RowState) -> None:
        slot = self._take(lambda slot: slot.holds(step))
        before, after = self._now, Snapshot.after(step, row)
        moment = notes.RecordedMoment(self.watch.state, slot, step, row, before, after)
        self._add(slot, after, notes.note(moment))
        if step.op == GREEDY:
            self._ended = notes.ENDED_GREEDY

    def _take(self, wanted: Callable[[Slot], bool]) -> Slot:
        """The next slot that is `wanted`; the ones before it had nothing to do."""
        while not wanted(self._waiting[0]):
            self._idle(self._waiting.popleft())
        return self._waiting.popleft()

    def _idle(self, slot: Slot) -> None:
        if self._ended:
            self._skip(slot, self._ended)
        else:
            self._add(slot, self._now, notes.IDLE)

    def _skip(self, slot: Slot, why: str) -> None:
        self._add(slot, self._now, why, reached=False)

    def _add(self, slot: Slot, after: Snapshot, note: str, *, reached: bool = True) -> None:
        before, self._now = self._now, after
        off = slot.off(self._params, mask="mask" in self.watch.masks)
        stage = Stage(
            name=slot.name,
            kind=slot.kind,
            rule=slot.rule(self._params),
            params=slot.params(self._params),
            options=slot.options(self._semantics),
            off=off,
            reached=reached,
            candidates_before=before.ids.size,
            candidates_after=after.ids.size,
            note="" if off else note,
            **_effect(before, after, self.watch.texts),
        )
        self.stages.append(stage)
        if not off:
            self._moments.append((stage.label, before, after))

    def follow(self, tokens: NDArray[np.int64]) -> None:
        """Sets `followed` for these tokens [n], once the run is over."""
        self.followed = [
            _follow(label, tokens, before, after, self._order(before)) for label, before, after in self._moments
        ]

    def _order(self, snapshot: Snapshot) -> NDArray[np.int64]:
        if self._ranked is None or not snapshot.ranks_like(self._ranked[0]):
            self._ranked = snapshot, snapshot.ranked()
        return self._ranked[1]

    def steps_of(self, position: int) -> tuple[TokenStep, ...]:
        """The steps of the token at a position of the watched ones."""
        return tuple(_token_step(stage, position) for stage in self.followed)

    def removed_by(self, position: int) -> str | None:
        """The label of the stage that took the token out for good, or None when it stayed in."""
        last = None
        for stage in self.followed:
            if stage.kept[position]:
                last = None
            elif last is None:
                last = stage.label
        return last


def _is_called(name: str, slot: Slot) -> bool:
    return slot.name == name


def _effect(before: Snapshot, after: Snapshot, texts: TokenTexts) -> dict:
    """What changed between two snapshots, as fields of a Stage."""
    if before is after:
        return {}
    inside = after.holds()
    gone = np.flatnonzero(~inside[before.ids])
    stayed = before.ids.size - gone.size
    changed = 0
    if before.x is not after.x:
        changed = int((before.x.view(np.int32) != after.x.view(np.int32))[after.ids].sum())
    return {
        "removed_count": gone.size,
        "added_count": after.ids.size - stayed,
        "removed_mass": before.share(before.w[gone]),
        "examples": _examples(before, gone, texts),
        "changed_count": changed,
    }


def _examples(before: Snapshot, gone: NDArray[np.int64], texts: TokenTexts) -> tuple[Removed, ...]:
    if not gone.size:
        return ()
    out = Snapshot(before.x, before.ids[gone], before.w[gone], before.total)
    top = out.likeliest(_EXAMPLES)
    chances = out.probabilities(top)
    return tuple(Removed(token=texts.token(int(t)), probability=float(p)) for t, p in zip(top, chances, strict=True))


def _follow(
    label: str, tokens: NDArray[np.int64], before: Snapshot, after: Snapshot, order: NDArray[np.int64]
) -> Followed:
    return Followed(
        label=label,
        logit_before=before.x[tokens],
        logit_after=after.x[tokens],
        probability_before=before.probabilities(tokens),
        probability_after=after.probabilities(tokens),
        cumulative=before.cumulative(tokens, order),
        kept=after.holds()[tokens],
    )


def _token_step(stage: Followed, i: int) -> TokenStep:
    return TokenStep(
        logit_before=float(stage.logit_before[i]),
        logit_after=float(stage.logit_after[i]),
        probability_before=float(stage.probability_before[i]),
        probability_after=float(stage.probability_after[i]),
        cumulative=float(stage.cumulative[i]),
        kept=bool(stage.kept[i]),
    )
