"""Models whose logits lie in shards, run by the engine without gathering them: a `BatchingModel` over a `Model`."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tirage.errors import ModelError, ParamsError
from tirage.exact.seeding import seeds
from tirage.models.protocol import DrawTokens, Inputs, Model, RowOutput
from tirage.models.text_only import TextOnly


class LogitShards(Protocol):
    """Where the logits of a model lie, and how those that hold them agree."""

    @property
    def vocab_size(self) -> int:
        """The width V of whole rows."""
        ...

    def join(self, parts: Sequence[Any]) -> Any:
        """Logits [B, V], as `tirage.backends.sharded` takes them, of what calls of the model gave, [k, n] each."""
        ...

    def agree(self, digest: int) -> bool:
        """Whether every process has given the same 64 bits."""
        ...

    def share(self, value: int) -> int:
        """The value of the first process, 63 bits, on every process."""
        ...


@dataclass(slots=True)
class _ShardedRow:
    """A request: its prompt, its cache once the prompt was prefilled, and the token to go on with."""

    key: int
    inputs: Inputs
    cache: Any = None
    token_id: int | None = None


class ShardedModel(TextOnly):
    """A `Model` whose logits are one shard, [n] or [B, n] of a vocabulary of V, as the engine runs it.

    Each step prefills one prompt and decodes the rows that have a token, then has the tokens of all drawn in parts.
    Where shards lie in several processes, each runs the same calls of `LLM` in the same order; a step on which they
    differ ends the requests with an error everywhere.
    """

    described = "a model in shards"

    def __init__(self, model: Model, shards: LogitShards) -> None:
        self.model, self.shards = model, shards
        self.vocab_size, self.max_length = shards.vocab_size, model.max_length
        self._rows: dict[int, _ShardedRow] = {}
        self._base, self._given = shards.share(secrets.randbits(63)), 0

    def check(self, inputs: Inputs) -> None:
        """Raises ParamsError for anything besides token ids, and for logprobs of the prompt."""
        super().check(inputs)
        if inputs.score:
            raise ParamsError("prompt_logprobs must be None, a model in shards draws and does not score prompts")

    def fresh_seed(self) -> int:
        """A seed for a request without one: another for every call, and the same on every process."""
        self._given += 1
        return seeds((self._base + self._given) % (1 << 63), 1)[0]

    def add(self, key: int, inputs: Inputs, *, limit: int, prompt_logprobs: int | None = None) -> None:
        """Queues a request."""
        self._rows[key] = _ShardedRow(key, inputs)

    def remove(self, key: int) -> None:
        """Ends a request; one that is not there is none."""
        row = self._rows.pop(key, None)
        close = getattr(self.model, "close", None)
        if row is not None and row.cache is not None and close is not None:
            close(row.cache, reuse=False)

    def step(self, draw: DrawTokens) -> list[RowOutput]:
        """A step of all requests. Raises ModelError where the processes differ about it."""
        waiting = next((row for row in self._rows.values() if row.cache is None), None)
        running = [row for row in self._rows.values() if row.token_id is not None]
        if not self.shards.agree(digest_of(waiting, running)):
            raise ModelError("every process must make the same requests in the same order, got different ones")
        rows, parts = [] if waiting is None else [waiting], []
        if waiting is not None:
            logits, waiting.cache = self.model.prefill(waiting.inputs.token_ids)
            parts.append(logits[None])
        if running:
            parts.append(self.model.decode([int(row.token_id or 0) for row in running], [row.cache for row in running]))
            rows += running
        tokens = draw([row.key for row in rows], self.shards.join(parts))
        for row, token in zip(rows, tokens, strict=True):
            row.token_id = token if token >= 0 else None
        return [RowOutput(key=row.key, token_id=row.token_id) for row in rows]

    def forget(self) -> None:
        """Clears the prefix cache, if the model has one."""
        clear = getattr(self.model, "forget", None)
        if clear is not None:
            clear()

    def close(self) -> None:
        """Frees the rows."""
        for key in list(self._rows):
            self.remove(key)


def digest_of(waiting: _ShardedRow | None, running: Sequence[_ShardedRow]) -> int:
    """64 bits, signed, of what a step does."""
    begun = None if waiting is None else (waiting.key, waiting.inputs.token_ids)
    text = repr((begun, [(row.key, row.token_id) for row in running]))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)
