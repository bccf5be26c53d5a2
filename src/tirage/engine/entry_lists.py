"""Lists of log-probabilities whose members are made when they are read: an answer may have a million."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tirage.draw import Draw
from tirage.engine.completion import LogprobEntry
from tirage.text import Tokenizer

T = TypeVar("T")


class MadeWhenRead(Sequence[T]):
    """A sequence that is equal to the tuple of its members, and becomes it where it is copied or pickled."""

    __slots__ = ()

    @abstractmethod
    def __iter__(self) -> Iterator[T]:
        """The members, made anew."""

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MadeWhenRead | tuple) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (list(self),)


class TopEntries(MadeWhenRead[LogprobEntry]):
    """The entries of the most likely tokens of a step, best first; equally likely ones share a rank.

    `found` float64 [2, n] has their ids and log-probabilities: 16 bytes of each, where an entry takes 200.
    """

    __slots__ = ("_found", "_tokenizer")

    def __init__(self, found: NDArray[np.float64], tokenizer: Tokenizer) -> None:
        self._found, self._tokenizer = found, tokenizer

    def __len__(self) -> int:
        return self._found.shape[1]

    def __iter__(self) -> Iterator[LogprobEntry]:
        ids, values = self._found.tolist()
        for token_id, value, rank in zip(ids, values, ranks_of(values), strict=True):
            yield entry(self._tokenizer, int(token_id), value, rank)

    def __getitem__(self, index: Any) -> Any:
        # The first ones keep their ranks.
        if isinstance(index, slice) and not index.start and index.step is None:
            return TopEntries(self._found[:, index], self._tokenizer)
        return super().__getitem__(index)


class GivenLogprobs(MadeWhenRead[tuple[int, float]]):
    """The (token id, logprob) pairs of the tokens that a request names: `ids` are the same at each step."""

    __slots__ = ("_ids", "_values")

    def __init__(self, ids: Sequence[int], values: NDArray[np.float64]) -> None:
        self._ids, self._values = ids, values

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self._ids, self._values.tolist(), strict=True)


def given_logprobs(ids: Sequence[int], values: Sequence[float] | NDArray[Any]) -> Sequence[tuple[int, float]]:
    """The pairs of `ids` with their log-probabilities, `values` [n] of any float dtype."""
    return GivenLogprobs(ids, np.array(values, np.float64)) if ids else ()


def top_entries(drawn: Draw, row: int, count: int, tokenizer: Tokenizer) -> Sequence[LogprobEntry]:
    """The entries of the `count` most likely tokens of a row, best first."""
    if not count or drawn.top_token_ids is None:
        return ()
    ids = np.asarray(drawn.top_token_ids[row])[:count]
    listed = int(np.count_nonzero(ids >= 0))
    found = np.empty((2, listed))
    found[0], found[1] = ids[:listed], np.asarray(drawn.top_logprobs[row])[:listed]
    return TopEntries(found, tokenizer)


def entry(
    tokenizer: Tokenizer,
    token_id: int,
    logprob: float,
    rank: int,
    *,
    offset: int | None = None,
    top: Sequence[LogprobEntry] = (),
    given: Sequence[tuple[int, float]] = (),
) -> LogprobEntry:
    """The entry of a token, with its own text and bytes."""
    spelled = tokenizer.token_bytes(token_id)
    return LogprobEntry(
        token_id=token_id,
        logprob=logprob,
        rank=rank,
        text=spelled.decode("utf-8", "replace"),
        bytes=spelled,
        offset=offset,
        top=top,
        given=given,
    )


def ranks_of(values: Sequence[float]) -> list[int]:
    """The ranks of values in descending order, from 1; equal ones have the rank of the first."""
    first: dict[float, int] = {}
    return [first.setdefault(value, rank) for rank, value in enumerate(values, start=1)]
