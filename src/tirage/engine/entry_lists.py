"""Lists of log-probabilities whose members are made when they are read: an answer may have a million."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tirage.draw import Draw
from tirage.engine.completion import LogprobEntry
from tirage.exact.keys import keys
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

    `found` float64 [2, n] has their ids and log-probabilities, `order` [n] what says which are equally likely, by
    default those: 20 bytes of each or less, where an entry takes 200.
    """

    __slots__ = ("_found", "_order", "_tokenizer")

    def __init__(self, found: NDArray[np.float64], tokenizer: Tokenizer, order: NDArray[Any] | None = None) -> None:
        self._found, self._tokenizer = found, tokenizer
        self._order: NDArray[Any] = found[1] if order is None else order

    def __len__(self) -> int:
        return self._found.shape[1]

    def __iter__(self) -> Iterator[LogprobEntry]:
        ids, values = self._found.tolist()
        for token_id, value, rank in zip(ids, values, ranks_of(self._order.tolist()), strict=True):
            yield entry(self._tokenizer, int(token_id), value, rank)

    def __getitem__(self, index: Any) -> Any:
        # The first ones keep their ranks.
        if isinstance(index, slice) and not index.start and index.step is None:
            return TopEntries(self._found[:, index], self._tokenizer, self._order[index])
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


def top_entries(
    drawn: Draw,
    row: int,
    count: int,
    tokenizer: Tokenizer,
    *,
    own: tuple[int, int] | None = None,
    logits: NDArray[np.float32] | None = None,
) -> Sequence[LogprobEntry]:
    """The entries of the `count` most likely tokens of a row, best first.

    `own` are the id and the rank of a token whose rank is known, `logits` float32 [n] those of at least `count` tokens
    of the list, in its order, where it was ordered by them.
    """
    if not count or drawn.top_token_ids is None:
        return ()
    ids = listed_ids(drawn, row)[:count]
    found = np.empty((2, ids.size))
    found[0], found[1] = ids, np.asarray(drawn.top_logprobs[row])[: ids.size]
    order = groups_of(ids, found[1], own) if logits is None else keys(logits[: ids.size])
    return TopEntries(found, tokenizer, order)


def listed_ids(drawn: Draw, row: int) -> NDArray[np.int64]:
    """The ids [n] of the list of the most likely tokens of a row, best first; such a list must have been asked for."""
    ids = np.asarray(drawn.top_token_ids[row])
    return ids[: np.count_nonzero(ids >= 0)]


def groups_of(ids: NDArray[Any], values: NDArray[Any], own: tuple[int, int] | None) -> NDArray[np.int32]:
    """Numbers [n] of the groups of equally likely tokens in a list [n] whose log-probabilities are `values`.

    These are rounded, and so may be equal where logits differ. Equal logits are listed by ascending ids (S-L5), and
    those of the token `own`, whose rank is known, begin at its rank; any other equal values are taken for equal logits.
    """
    begins = np.ones(ids.size, np.bool_)
    begins[1:] = (values[1:] != values[:-1]) | (ids[1:] < ids[:-1])
    if own is not None:
        token_id, rank = own
        places = np.flatnonzero(ids == token_id)
        if places.size and 0 < rank <= places[0] + 1:
            begins[rank - 1], begins[rank : places[0] + 1] = True, False
    return np.cumsum(begins, dtype=np.int32)


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
    """The ranks of values in the order of a list, from 1; equal ones have the rank of the first."""
    first: dict[float, int] = {}
    return [first.setdefault(value, rank) for rank, value in enumerate(values, start=1)]
