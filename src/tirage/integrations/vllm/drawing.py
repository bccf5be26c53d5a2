"""The draw itself: tokens for some rows of vLLM's logits, left in the logits so that vLLM's sampler picks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tirage.draw import Status
from tirage.integrations.vllm.requests import Request

LARGEST = 3.4028234663852886e38
"""The largest float32: above every logit of a model."""


class Place(NamedTuple):
    """A row of logits, whose it is, and all ids that were put out before it, or as many."""

    row: int
    request: Request
    output: Sequence[int]


class Drawing:
    """The requests that tirage draws in one engine. Nothing here raises: a request that fails is ended, alone."""

    __slots__ = ("_rows", "vocab_size")

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._rows: Any = None

    def __contains__(self, request: Request) -> bool:
        return request in self._engine_rows()

    def add(self, request: Request, prompt: Sequence[int]) -> None:
        """Takes in a request with its prompt [T]."""
        try:
            self._engine_rows().add(request, request.params, prompt, sample_index=request.sample_index)
        except Exception as error:
            request.fail(error)

    def remove(self, request: Request) -> None:
        """Forgets a request."""
        self._engine_rows().remove(request)

    def apply(self, logits: Any, places: Sequence[Place]) -> None:
        """Draws one token for each of `places`, none of whose requests occurs twice, and leaves it in `logits` [n, V].

        vLLM's greedy sampler then needs it to be the largest; for the random one everything else goes to -inf.
        """
        if not places:
            return
        tokens = self._tokens(logits, [place for place in places if not place.request.failed])
        cleared = [place.row for place in places if place.request.alone or place.request.failed]
        if len(cleared) == logits.shape[0]:
            logits.fill_(float("-inf"))
        elif cleared:
            logits[cleared] = float("-inf")
        columns = [tokens.get(place.row, self._end(place.request)) for place in places]
        logits[[place.row for place in places], columns] = LARGEST

    def _end(self, request: Request) -> int:
        """The token that ends a request; 0 for one that has none in this vocabulary."""
        return request.end if request.end is not None and request.end < self.vocab_size else 0

    def _tokens(self, logits: Any, places: list[Place]) -> dict[int, int]:
        """The token drawn for each row; a row whose draw fails has none, and its request has failed."""
        try:
            return self._drawn(logits, places)
        except Exception as error:
            if len(places) == 1:
                places[0].request.fail(error)
                return {}
        return {row: token for place in places for row, token in self._tokens(logits, [place]).items()}

    def _drawn(self, logits: Any, places: list[Place]) -> dict[int, int]:
        if not places:
            return {}
        rows = [place.row for place in places]
        mine = logits if rows == list(range(logits.shape[0])) else logits[rows]
        draw = self._engine_rows().draw(mine, [p.request for p in places], [p.output for p in places])
        tokens = {}
        for place, token, status in zip(places, draw.token_ids.tolist(), draw.status.tolist(), strict=True):
            if status == Status.ok:
                place.request.remember(len(place.output), token)
                tokens[place.row] = token
            else:
                place.request.fail(Status(status).name)
        return tokens

    def _engine_rows(self) -> Any:
        """The rows, made with the first request: vLLM's worker does not start where llvmlite, which they import, is."""
        if self._rows is None:
            from tirage.integrations.rows import EngineRows

            self._rows = EngineRows(self.vocab_size)
        return self._rows
