"""`EngineRows`: the requests that an engine runs, each with its parameters, seed and history."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.backends import find
from tirage.draw import Draw
from tirage.errors import ParamsError
from tirage.history import History
from tirage.integrations.drawn_path import DrawnPath, LeftPaths
from tirage.integrations.params import readers
from tirage.params import SamplingParams
from tirage.sampling import draw_batch
from tirage.sampling_batch import SamplingBatch, SamplingRow

Ids = Sequence[int] | NDArray[np.integer[Any]]


@dataclass(slots=True)
class _Request:
    """A row, the prompt from which its history is made anew where the engine has taken tokens back, and that output.

    `path` is what it drew, for a row that carries a state.
    """

    row: SamplingRow
    prompt: NDArray[np.int64]
    readers: tuple[str, ...]
    output: list[int] = field(default_factory=list)
    path: DrawnPath = field(default_factory=DrawnPath)

    @property
    def carries(self) -> bool:
        """Whether its draw depends on a state that moves with each token that was drawn."""
        return self.row.compiled.carrier is not None

    @property
    def asked(self) -> Hashable:
        """What its state follows from, beside its text."""
        return self.row.params.replace(seed=None), self.prompt.tobytes()

    def append(self, token: int) -> None:
        """Adds a token that the engine has put out; the state moves as it did when the token was drawn.

        Raises ParamsError where the state is not known, as nothing was drawn there.
        """
        self.row.history.check_room()
        if self.carries:
            self.row.drawn = self.path.put_out(token, step=len(self.output))
            if self.row.drawn is None:
                raise ParamsError(
                    f"{self.row.carrier_name} must have drawn each token of its request here, got an output whose "
                    f"token {len(self.output)} was not; without its state the request cannot go on"
                )
        self.row.append(token)
        self.output.append(token)

    def restart(self, vocab_size: int) -> None:
        """Goes back to the prompt."""
        self.row.history = History.of(self.prompt, (), vocab_size=vocab_size)
        self.row.state, self.output = self.row.compiled.initial_state, []

    def note_drawn(self) -> None:
        """Keeps what the row drew at its step, if it carries a state."""
        if self.row.drawn is not None:
            self.path.note(self.row.drawn, step=self.row.at)


class EngineRows:
    """Requests under keys of the engine's own; what each has said so far is what the engine says at every draw.

    A row depends on its own parameters, prompt and output alone: not on its neighbours, on the order of the rows, nor
    on whether the engine has preempted the request, taken tokens back or drawn a step twice.
    """

    __slots__ = ("_drawn", "_left", "_requests", "vocab_size")

    def __init__(self, vocab_size: int) -> None:
        """No requests, over the columns of the engine's logits."""
        self.vocab_size = vocab_size
        self._requests: dict[Hashable, _Request] = {}
        self._drawn: tuple[tuple[Hashable, ...], SamplingBatch] | None = None
        self._left = LeftPaths()

    def __len__(self) -> int:
        """The number of requests."""
        return len(self._requests)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._requests

    def check(self, params: SamplingParams) -> None:
        """Raises ParamsError where `params` name a token beyond the vocabulary."""
        SamplingRow.of(params, History.of((), (), vocab_size=self.vocab_size)).compiled.check(self.vocab_size)

    def add(
        self, key: Hashable, params: SamplingParams, prompt_ids: Iterable[int] = (), *, sample_index: int = 0
    ) -> None:
        """Puts a request under `key`, in place of one that was there; its seed, given or fresh, stays.

        `prompt_ids` are integers [T] in [0, V). Raises ParamsError for an id out of range, and for parameters that
        name one or whose words are not tokenised.
        """
        prompt = np.array(list(prompt_ids), np.int64)
        row = SamplingRow.of(params, History.of(prompt, (), vocab_size=self.vocab_size), sample_index=sample_index)
        row.compiled.check(self.vocab_size)
        self._requests[key] = _Request(row, prompt, readers(params))
        self._drawn = None

    def remove(self, key: Hashable) -> None:
        """Forgets a request; one that is not there is none.

        What rows that carry a state have drawn is kept for a while: the same request may come back with its output.
        """
        if (request := self._requests.pop(key, None)) is not None:
            self._drawn = None
            if request.path.drawn:
                self._left.keep(request.asked, request.path)

    def seed(self, key: Hashable) -> int:
        """The seed of a request, given or fresh. Raises KeyError for one that is not there."""
        return self._requests[key].row.seed

    def draw(self, logits: Any, keys: Sequence[Hashable], outputs: Sequence[Ids], *, mask: Any = None) -> Draw:
        """One token for each of `keys`, which may be any requests in any order, none of them twice.

        `logits` [n, V] of any library; `outputs`, for each row, all ids [t] that the engine has put out for it so far:
        t is the position that keys the uniform. Ids that are not known yet may be -1 where no parameter of the row
        reads them. A row that cannot be drawn has token -1 and its `status`. Raises ParamsError for arrays that do not
        fit and for a state that is not known, KeyError for a key that is not there.
        """
        if len(set(keys)) != len(keys):
            raise ParamsError(f"keys must be different requests, got {list(keys)}")
        for key, output in zip(keys, outputs, strict=True):
            self._follow(key, output)
        backend = find(logits)
        matrix = backend.as_logits(logits)
        if tuple(matrix.shape) != (len(keys), self.vocab_size):
            raise ParamsError(f"logits must be [{len(keys)}, {self.vocab_size}], got {list(matrix.shape)}")
        drawn = draw_batch(backend, matrix, self._batch(tuple(keys)), backend.as_mask(mask, matrix.shape))
        for key in keys:
            self._requests[key].note_drawn()
        return drawn

    def _batch(self, keys: tuple[Hashable, ...]) -> SamplingBatch:
        """The packed rows, kept while the same requests are drawn in the same order."""
        if self._drawn is None or self._drawn[0] != keys:
            rows = [self._requests[key].row for key in keys]
            self._drawn = keys, SamplingBatch.of(rows, self.vocab_size)
        return self._drawn[1]

    def _follow(self, key: Hashable, output: Ids) -> None:
        """Brings a row to the position after `output`; its tokens matter only to parameters that read them."""
        request = self._requests[key]
        row = request.row
        row.step = len(output)
        if not request.readers:
            return
        ids = output if isinstance(output, list) else np.asarray(output).tolist()
        known = len(request.output)
        if ids[:known] != request.output:
            request.restart(self.vocab_size)
            known, self._drawn = 0, None
        if ids and request.carries and not request.path.drawn:
            request.path = self._left.take(request.asked, ids)
        for token in ids[known:]:
            if not 0 <= token < self.vocab_size:
                raise ParamsError(f"output ids must be known where {', '.join(request.readers)} read them, got {token}")
            request.append(token)
