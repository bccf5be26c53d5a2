"""Which samples and beams take part in a step, and which rest: those beyond a share, and those without a mask yet."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence

from tirage.engine.fairness import TURN_STEPS, FairnessKey, StepPace, Turns, shares
from tirage.engine.mask_turns import MaskTurns
from tirage.engine.scorer import Beam
from tirage.engine.sequence import RunningSequence, SequenceGroup


class StepRows:
    """The rows of the present step, chosen so that each request has its share; for the engine's thread.

    `drawing` are the samples that take part. A step has at most as many rows as fit into its time
    (`fairness.StepPace`), which is longer where one request is alone; each row has its turn, and what rests draws the
    same token in a later step.
    """

    def __init__(self, max_running: int) -> None:
        self._max_running = max_running
        self._row_turns, self._request_turns = Turns(TURN_STEPS), Turns(TURN_STEPS)
        self._pace, self._masks = StepPace(), MaskTurns()
        self._count, self._waited_s = 0, 0.0
        # How many beams of a search take part; None for all.
        self._beams: dict[SequenceGroup, int] | None = None
        self.drawing: list[RunningSequence] = []

    def choose(
        self, running: Sequence[RunningSequence], searching: Sequence[SequenceGroup], *, prompts: Iterable[FairnessKey]
    ) -> None:
        """Chooses among the samples and searches; the requests of `prompts`, which are prefilled, want time as well."""
        self.drawing, self._beams, self._waited_s = [*running], None, 0.0
        self._count = len(running) + sum(group.slots(self._max_running) for group in searching)
        if self._count > min(self._max_running, self._pace.most_rows):
            self._share(running, searching, prompts)
        if searching or any(each.sample.grammar is not None for each in running):
            self._wait_for_masks(searching)

    def choose_again(self, ready: Sequence[RunningSequence]) -> None:
        """Has samples of the step take part once more, of the constrained ones those whose masks are ready in time."""
        before, self.drawing = self._waited_s, [*ready]
        if any(each.sample.grammar is not None for each in ready):
            self._wait_for_masks(())
            self._waited_s += before

    def beams_of(self, group: SequenceGroup) -> int | None:
        """How many beams of a search take part in this step; None for all."""
        return None if self._beams is None else self._beams.get(group, 0)

    def end(self, seconds: float, *, searched: bool) -> None:
        """Ends the step, which took so many seconds after its prompts; `searched`: hypotheses of searches were made."""
        # The time that making them takes has nothing to do with the number of rows.
        if self._count and not searched:
            self._pace.record(self._count, max(0.0, seconds - self._waited_s))
        self.drawing, self._beams, self._count = [], None, 0

    def record_single(self, seconds: float) -> None:
        """Notes how long the steps of a sample took that had an engine to itself."""
        self._pace.record(1, seconds)

    def forget(self, row: RunningSequence | SequenceGroup) -> None:
        """Drops a sample or a search that has ended."""
        self._row_turns.forget(row)

    def _share(
        self,
        running: Sequence[RunningSequence],
        searching: Sequence[SequenceGroup],
        prompts: Iterable[FairnessKey],
    ) -> None:
        """Lets a part of the rows take part if there are more than fit, each request with its share."""
        wanted = Counter(sequence.group.key for sequence in running)
        for group in searching:
            wanted[group.key] += group.slots(self._max_running)
        most = self._most_rows({*wanted, *prompts})
        if self._count > most:
            self._count = most
            given = shares({key: wanted[key] for key in self._request_turns.order(wanted)}, most)
            self._request_turns.take(key for key, count in given.items() if count)
            self._divide(given, running, searching)

    def _most_rows(self, keys: set[FairnessKey]) -> int:
        """How many rows a step of these requests may have."""
        if len(keys) < 2:
            return min(self._max_running, max(self._pace.most_rows_alone, 1))
        # A request has a row in each step, or where several tenants ask, a tenant.
        tenants = len({key.tenant for key in keys})
        return min(self._max_running, max(self._pace.most_rows, tenants if tenants > 1 else len(keys)))

    def _divide(
        self,
        given: dict[FairnessKey, int],
        running: Sequence[RunningSequence],
        searching: Sequence[SequenceGroup],
    ) -> None:
        """Divides what each request is given among its rows, in turn."""
        left, chosen, beams = {**given}, set[RunningSequence](), dict[SequenceGroup, int]()
        for each in self._row_turns.order([*running, *searching]):
            if isinstance(each, RunningSequence):
                taken = min(left[each.group.key], 1)
                left[each.group.key] -= taken
                if taken:
                    chosen.add(each)
                else:
                    each.keep_logits()
            else:
                beams[each] = min(left[each.key], each.slots(self._max_running))
                left[each.key] -= beams[each]
        self._row_turns.take(chosen)
        self._row_turns.take(group for group, count in beams.items() if count)
        self.drawing, self._beams = [each for each in running if each in chosen], beams

    def _wait_for_masks(self, searching: Sequence[SequenceGroup]) -> None:
        """Computes the masks of what takes part, for a part of the step; what has none by then rests."""
        began = time.perf_counter()
        beams = [beam for group in searching for beam in self._to_list(group)]
        ready = iter(self._masks.ready([each.sample for each in (*self.drawing, *beams)]))
        drawing = [(each, next(ready)) for each in self.drawing]
        for beam in beams:
            beam.is_masked = next(ready)
        for each, is_ready in drawing:
            if not is_ready:
                each.keep_logits()
        self.drawing = [each for each, is_ready in drawing if is_ready]
        self._waited_s = time.perf_counter() - began

    def _to_list(self, group: SequenceGroup) -> list[Beam]:
        return [] if group.search is None else group.search.unlisted[: self.beams_of(group)]
