"""The matcher of one text: which tokens its grammar allows next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tirage.guided.vocabulary import Vocabulary

Mask = NDArray[np.int32]


class Cursor(Protocol):
    """The state of one text in a backend. It does not know the tokens that end a text."""

    def fill(self, mask: Mask) -> None:
        """Writes the tokens that may come next into int32 [ceil(V / 32)], least significant bit first, 1 = allowed."""
        ...

    def accept(self, token_id: int) -> bool:
        """Whether the token may come next; if so, moves past it, otherwise nothing changes."""
        ...

    def rollback(self, count: int) -> None:
        """Takes back the last `count` tokens."""
        ...

    def complete(self) -> bool:
        """Whether the text so far satisfies the grammar."""
        ...

    def forced_bytes(self) -> bytes:
        """The bytes with which every text goes on from here; none where it may end."""
        ...

    def stopped(self) -> bool:
        """Whether no token may follow."""
        ...

    def error(self) -> str:
        """Why the backend cannot continue; empty while it can."""
        ...

    def fork(self) -> Cursor:
        """An independent cursor in the same state."""
        ...

    def renew(self) -> None:
        """Compiles anew what the cursors of the grammar share, which may be full, and reads the tokens so far again."""
        ...

    @property
    def shared(self) -> object:
        """What the cursors of one grammar share and change: only one thread may use cursors with the same object."""
        ...

    @property
    def shared_bytes(self) -> int:
        """The estimated size of what texts have added to `shared`."""
        ...


class Matcher:
    """Follows one text through a shared grammar.

    `eos_ids` are the tokens that end the text: they are allowed exactly when the text is complete, even if they could
    also be read as text. Without them (`ignore_eos`) a text ends when the grammar allows nothing more. Bits of padding
    and beyond the vocabulary are always 0. SPEC.md S-G2, S-G3.
    """

    __slots__ = ("_closed", "_cursor", "_eos_ids", "_length", "vocabulary")

    def __init__(self, cursor: Cursor, vocabulary: Vocabulary, eos_ids: Sequence[int] = ()) -> None:
        self._cursor, self.vocabulary = cursor, vocabulary
        self._eos_ids = tuple(i for i in eos_ids if i < vocabulary.width)
        self._length, self._closed = 0, False

    def fill_mask(self, mask: Mask) -> None:
        """Writes the tokens that may come next into int32 [ceil(V / 32)], least significant bit first, 1 = allowed.

        All bits are 0 after an end token and in a dead end of the grammar.
        """
        if self._closed:
            mask[:] = 0
            return
        self._cursor.fill(mask)
        if self._eos_ids:
            complete = self.complete
            for i in self._eos_ids:
                set_bit(mask, i, complete)

    def accept(self, token_id: int) -> bool:
        """Whether the token may come next; if so, moves past it, otherwise nothing changes."""
        if self._closed:
            return False
        if token_id in self._eos_ids:
            self._closed = self.complete
            return self._closed
        if not 0 <= token_id < self.vocabulary.width or not self._cursor.accept(token_id):
            return False
        self._length += 1
        return True

    def accept_allowed(self, token_id: int) -> bool:
        """Moves past a token that a mask has allowed; False when the backend refuses it all the same."""
        if self.accept(token_id):
            return True
        if self.error:
            return False
        self._cursor.renew()
        return self.accept(token_id)

    def rollback(self, count: int) -> None:
        """Takes back the last `count` accepted tokens, an end token included; ValueError if there are fewer."""
        if not 0 <= count <= self._length + self._closed:
            raise ValueError(f"count must be in [0, {self._length + self._closed}], got {count}")
        if count and self._closed:
            self._closed, count = False, count - 1
        if count:
            self._cursor.rollback(count)
            self._length -= count

    def forced(self, limit: int = 64) -> tuple[int, ...]:
        """The next tokens that are determined, each being the only one allowed; at most `limit`."""
        tokens: list[int] = []
        mask = np.zeros(self.vocabulary.words, np.int32)
        while len(tokens) < limit:
            self.fill_mask(mask)
            only = only_bit(mask)
            if only is None or not self.accept(only):
                break
            tokens.append(only)
        self.rollback(len(tokens))
        return tuple(tokens)

    def forced_bytes(self) -> bytes:
        """The bytes with which every text goes on from here; none where it may end, and after its end."""
        return b"" if self._closed or self.complete else self._cursor.forced_bytes()

    def fork(self) -> Matcher:
        """An independent matcher in the same state, for beams."""
        other = Matcher(self._cursor.fork(), self.vocabulary, self._eos_ids)
        other._length, other._closed = self._length, self._closed
        return other

    @property
    def length(self) -> int:
        """How many tokens it has accepted, an end token not counted."""
        return self._length

    @property
    def closed(self) -> bool:
        """Whether an end token has been accepted."""
        return self._closed

    @property
    def complete(self) -> bool:
        """Whether the text so far satisfies the grammar."""
        return self._closed or self._cursor.complete()

    @property
    def done(self) -> bool:
        """Whether the text is complete and only an end token may follow."""
        return self._closed or (self._cursor.complete() and self._cursor.stopped())

    @property
    def shared(self) -> object:
        """What it shares with the other matchers of its grammar; see `Cursor`."""
        return self._cursor.shared

    @property
    def error(self) -> str:
        """Why the grammar cannot be followed further, for example a work limit; empty while it can."""
        return self._cursor.error()


def set_bit(mask: Mask, index: int, value: bool) -> None:
    """Sets or clears one bit of a mask int32 [ceil(V / 32)], in place."""
    bit, words = 1 << index % 32, mask.view(np.uint32)
    # In Python's integers, which take half the time of NumPy's scalars.
    word = int(words[index // 32])
    words[index // 32] = word | bit if value else word & ~bit


def only_bit(mask: Mask) -> int | None:
    """The index of the only bit set in a mask int32 [ceil(V / 32)]; None if none or several are set."""
    words = np.flatnonzero(mask)
    if len(words) != 1:
        return None
    word = int(mask.view(np.uint32)[words[0]])
    return None if word & (word - 1) else int(words[0]) * 32 + word.bit_length() - 1
