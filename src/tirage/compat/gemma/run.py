"""The decoding loop of one call: the turns of its prompts, step by step, over the model's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tirage.compat.gemma.images import Images
from tirage.compat.gemma.keys import Source, key_of_sources
from tirage.compat.gemma.media import Media
from tirage.compat.gemma.methods import Chooser
from tirage.compat.gemma.runner import ForbiddenMask, ForwardInput, ModelRunner
from tirage.compat.gemma.state import REASONS, FinishReason, Row, SamplingState, register_pytrees, with_slots
from tirage.draw import Status
from tirage.errors import ParamsError
from tirage.text import Detokenizer


@dataclass(slots=True, kw_only=True)
class Turn:
    """One prompt's turn: the conversation's tokens, of which `read` fill `slots` of its cache, and the turn's output.

    `decoded` of the output tokens are in `text`; `new_text` is what the last step added to it.
    """

    token_ids: list[int]
    read: int
    slots: int
    detokenizer: Detokenizer
    images: Images | Media | None
    output_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    text: str = ""
    new_text: str = ""
    decoded: int = 0

    def append_text(self, *, show_end: bool) -> None:
        """Adds the text of the tokens since the last call, and keeps it in `new_text`."""
        ended = self.finish_reason == "stop" and not show_end
        ids = self.output_ids[self.decoded : len(self.output_ids) - ended]
        self.decoded = len(self.output_ids)
        self.new_text = "".join(map(self.detokenizer.push, ids))
        if self.finish_reason is not None:
            self.new_text += self.detokenizer.finish()
        self.text += self.new_text


@dataclass(slots=True, kw_only=True)
class Run:
    """A call that was checked; each of its steps draws one token for every prompt that is not finished.

    `ends` are the tokens that end a turn, `limit` is how many it has at most; `show_end` keeps an end token's text.
    """

    turns: list[Turn]
    runner: ModelRunner
    cache: Any
    chooser: Chooser
    sources: Sequence[Source]
    ends: frozenset[int]
    forbidden_mask: ForbiddenMask
    limit: int
    max_out_length: int
    batched: bool
    show_end: bool = True
    first_length: int = 0
    step: int = 0

    def steps(self) -> Iterator[None]:
        """Runs all turns to their ends; after each step `new_text` of every turn is up to date."""
        for rows in self._steps():
            for turn in self.turns:
                turn.new_text = ""
            for row in rows:
                self.turns[row].append_text(show_end=self.show_end)
            yield

    def finish(self, decode: Callable[[list[int]], str | None]) -> list[str]:
        """The texts of all turns, run to their ends.

        `decode` gives the text of a whole turn, a fraction of the work of decoding token by token; where it gives None,
        the tokens are decoded one by one.
        """
        for _ in self._steps():
            pass
        for turn in self.turns:
            text = decode(turn.output_ids) if self.show_end else None
            if text is None:
                turn.append_text(show_end=self.show_end)
            else:
                turn.text = text
        return [turn.text for turn in self.turns]

    def _steps(self) -> Iterator[list[int]]:
        """Runs all turns to their ends; yields the rows that took part in each step."""
        self.first_length = max((self._length(turn) for turn in self.turns), default=1) - 1
        while rows := [row for row, turn in enumerate(self.turns) if turn.finish_reason is None]:
            self._step(rows)
            yield rows

    def state(self) -> SamplingState:
        """The state of the turns now; later steps of the run do not change it."""
        register_pytrees()
        turns, length = self.turns, self.runner.capacity
        lengths, read, slots, outputs = (
            np.array(column, np.int32)
            for column in (
                [len(turn.token_ids) for turn in turns],
                [turn.read for turn in turns],
                [turn.slots for turn in turns],
                [len(turn.output_ids) for turn in turns],
            )
        )
        last = slots + lengths - read - 1
        state = SamplingState(
            step=np.int32(self.step),
            done=np.array([turn.finish_reason == "stop" for turn in turns], bool),
            last_token=np.array([turn.token_ids[-1] for turn in turns], np.int32),
            last_token_pos=last,
            predicted_tokens=padded_ids([turn.output_ids for turn in turns], self.max_out_length),
            cache=with_slots(self.cache, slots),
            rng=key_of_sources(self.sources, jax=self.runner.uses_jax),
            init_cache_length=np.int32(self.first_length),
            full_attention_mask=np.arange(length) <= last[:, None],
            token_ids=padded_ids([turn.token_ids for turn in turns], length),
            lengths=lengths,
            read=read,
            slots=slots,
            output_lengths=outputs,
            reasons=np.array([REASONS.index(turn.finish_reason) for turn in turns], np.int8),
        )
        self.cache = self.runner.share(self.cache)
        return state

    def _step(self, rows: Sequence[int]) -> None:
        """One token for each of these turns."""
        inputs = [self._forward_input(row) for row in rows]
        logits, self.cache = self.runner.forward(self.cache, inputs, self.forbidden_mask)
        self.step += 1
        for row, token in zip(rows, self.chooser.choose(logits, rows, self.step - 1), strict=True):
            self._take(self.turns[row], token)

    def _forward_input(self, row: int) -> ForwardInput:
        turn = self.turns[row]
        ids = turn.token_ids[turn.read :]
        following = ForwardInput(row=row, ids=ids, token_ids=turn.token_ids, slots=turn.slots, images=turn.images)
        turn.slots, turn.read, turn.images = self._length(turn), len(turn.token_ids), None
        return following

    def _length(self, turn: Turn) -> int:
        """Slots that a conversation takes when all of its tokens are in the cache."""
        return turn.slots + slots_of(self.runner, turn.token_ids[turn.read :])

    def _take(self, turn: Turn, token: int | Status) -> None:
        """Adds a token to a turn, or ends it where the draw gave no token."""
        if isinstance(token, Status):
            turn.finish_reason = "error"
            return
        turn.token_ids.append(token)
        turn.output_ids.append(token)
        turn.finish_reason = self._reason(turn, token)

    def _reason(self, turn: Turn, token: int) -> FinishReason | None:
        if token in self.ends:
            return "stop"
        if len(turn.output_ids) == self.limit:
            return "length"
        return "cache_full" if turn.slots + 1 >= self.runner.capacity else None


def start_turn(
    runner: ModelRunner,
    ids: Sequence[int],
    before: Row | None,
    *,
    images: Images | Media | None,
    detokenizer: Detokenizer,
) -> Turn:
    """A turn that answers a new prompt at the end of a conversation, with its images, uint8 [N, H, W, C], or media.

    Raises ParamsError where there is no token to run, and where `cache_length` leaves no room for an answer.
    """
    token_ids = [*(before.token_ids if before else ()), *ids]
    read, slots = (before.read, before.slots) if before else (0, 0)
    if len(token_ids) == read:
        raise ParamsError("prompt must hold at least one token, got none; begin it with a BOS token or some text")
    length = slots + slots_of(runner, token_ids[read:])
    if length >= runner.capacity:
        raise ParamsError(
            f"prompt must leave room for an answer in cache_length, which is {runner.capacity}, got a conversation of "
            f"{length} tokens; raise cache_length or begin a new conversation"
        )
    return Turn(token_ids=token_ids, read=read, slots=slots, images=images, detokenizer=detokenizer)


def slots_of(runner: ModelRunner, ids: Sequence[int]) -> int:
    """Slots that ids take in a cache, with the soft tokens of their images."""
    return len(ids) if runner.vision is None else runner.vision.slots(ids)


def padded_ids(rows: Sequence[Sequence[int]], width: int) -> Any:
    """Ids of several rows, int32 [B, width], zeros after them."""
    out = np.zeros((len(rows), width), np.int32)
    for ids, row in zip(rows, out, strict=True):
        row[: len(ids)] = ids
    return out
