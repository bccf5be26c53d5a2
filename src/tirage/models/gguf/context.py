"""A context of libllama: the KV cache of many sequences, which grows when it is full, and the batches through it."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence
from sys import getrefcount
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ModelError
from tirage.models.gguf.library import LoadedModel, forget_errors, last_errors
from tirage.models.gguf.places import Places, are_neighbours
from tirage.models.gguf.sequence_state import SequenceStates, State

MAX_SEQUENCES = 256
"""The most sequences of a context (`LLAMA_MAX_SEQ`)."""
FIRST_SHARING, FIRST_APART = 32, 8
"""The sequences of a new context, that share their cells or have cells of their own: a step visits all of them."""
SHORTEST = 256
"""The fewest cells of a sequence, and what libllama rounds them up to."""
APART_BYTES = 512 << 20
"""The size up to which sequences have cells of their own, for a model whose weights are not more than 4 times that."""
_FULL, _BLOCK, _FEW = 1, 256, 16
_FLOAT32, _NO_FLASH_ATTENTION = 0, 0
_MOST_KEPT = 1 << 20
"""The size of logits of which copies are kept."""
_UNUSED = 3
"""The references to a kept copy that nobody else holds: the list's, a variable's and that of `getrefcount` itself."""

Logits = NDArray[np.float32]


class CacheFullError(ModelError):
    """The KV cache has no room for a batch and cannot be made larger; nothing has changed."""


class Context:
    """The state of all sequences of one model: their keys and values are in `cells`, one for each token.

    Each sequence has cells of its own, and attention visits no others; with `shared` all take theirs from the same
    ones, and a copy of a sequence takes none. The former turns into the latter with `share`, or when it would take too
    many cells. `cells` is doubled when a batch finds no room; the content is copied bit for bit. Keys and values are
    float16, as llama.cpp keeps them, or `exact`: float32, with attention in float32. For one thread.
    """

    def __init__(self, loaded: LoadedModel, *, cells: int, threads: int, exact: bool, shared: bool) -> None:
        library = loaded.library
        self._loaded, self._library = loaded, library
        self._threads, self._exact = threads, exact
        self._vocab_size = library.llama_vocab_n_tokens(loaded.vocab)
        self._batch, arrays = _new_batch(library, _BLOCK)
        self._tokens, self._positions, self._sequences, self._wanted = arrays
        self._logits_address = _logits_address(library)
        self.cells = self.sequences = 0
        self.shared = shared
        self._view: tuple[Any, Any] = None, None
        self._copies: list[Logits] = []
        self._context: Any = None
        self._free: Any = None
        self._places = Places(0)
        self._most_apart = most_apart(loaded, exact=exact)
        self._last_apart = max(cells, SHORTEST * FIRST_APART), FIRST_APART
        if shared:
            self._replace(cells, FIRST_SHARING, shared=True)
        else:
            self._replace(*self._last_apart, shared=False)
            if not self._states.are_known:
                self._replace(cells, FIRST_SHARING, shared=True)
        self.is_separable = not self.shared
        """Whether sequences can have cells of their own; those that once took too many share them for good."""

    def run(self, token_ids: Sequence[int], positions: Any, sequences: Any, *, wanted: Any = True) -> Logits:
        """Logits float32 [k, V] after those of at most 256 tokens that are `wanted`.

        `positions` and `sequences` are an integer for all tokens or integers [T], `wanted` is a bool or bools [T].
        Raises CacheFullError if there is no memory for a larger cache, ModelError for any other failure; then
        sequences may have grown, and must be cut.
        """
        count = len(token_ids)
        places, order = self._in_order(sequences)
        given = ((self._tokens, token_ids), (self._positions, positions), (self._sequences, places))
        for array, values in (*given, (self._wanted, wanted)):
            array[:count] = values
            if order is not None:
                array[:count] = array[:count][order]
        asked = np.flatnonzero(self._wanted[:count])
        return self._decode(count, len(asked), None if order is None else np.argsort(order[asked]))

    def step(self, token_ids: Sequence[int], positions: Sequence[int], sequences: Sequence[int]) -> Logits:
        """Logits float32 [B, V] after one token each of at most 256 sequences; raises what `run` does."""
        count = len(token_ids)
        if count > _FEW:
            return self.run(token_ids, positions, np.asarray(sequences))
        places = self._line_up(sequences)
        in_order = self.shared or are_neighbours(places)
        order = range(count) if in_order else sorted(range(count), key=places.__getitem__)
        # One by one, which needs less code of NumPy: the weights have driven it out of the processor's caches.
        # Besides, NumPy may release the interpreter's lock, and this thread would have to wait to get it back.
        for at, row in enumerate(order):
            self._tokens[at], self._positions[at], self._sequences[at] = token_ids[row], positions[row], places[row]
            self._wanted[at] = True
        return self._decode(count, count, None if in_order else np.argsort(order))

    def step_single(self, token_id: int, position: int, sequence: int) -> Logits:
        """Logits float32 [1, V] after a token of one sequence, in libllama's memory; raises what `run` does."""
        place = self._places.at(sequence)
        self._tokens[0], self._positions[0], self._sequences[0], self._wanted[0] = token_id, position, place, True
        self._compute(1)
        return self._logits(1)

    def _in_order(self, sequences: Any) -> tuple[Any, NDArray[np.intp] | None]:
        """(the places of sequences as `run` has them, the order of tokens in which a batch goes by place).

        The order is None where it is that of the tokens, or where all cells are shared.
        """
        if isinstance(sequences, int):
            return self._places.at(sequences), None
        given = sequences.tolist()
        self._line_up(list(dict.fromkeys(given)))
        places = np.array(self._places.of(given), np.int32)
        in_order = self.shared or not np.any(places[1:] < places[:-1])
        return places, None if in_order else np.argsort(places, kind="stable")

    def _line_up(self, sequences: Sequence[int]) -> list[int]:
        """The places of sequences, with no gap any more: libllama computes rows together where they go up by one."""
        places = self._places.of(sequences)
        if self.shared or max(places) - min(places) < len(places):
            return places
        for first, second in self._places.exchanges(sequences):
            self._exchange(first, second)
        return self._places.of(sequences)

    def _exchange(self, first: int, second: int) -> None:
        """Has two sequences change places. Raises ModelError, and changes nothing, where libllama cannot copy one."""
        states = {each: self.save(each) for each in (first, second) if not self._is_empty(each)}
        if any(state is None for state in states.values()):
            raise ModelError(f"libllama could not copy a sequence: {last_errors()}")
        for sequence in states:
            self.cut(sequence)
        self._places.exchange(first, second)
        for sequence, state in states.items():
            # There is room, as both places have the same number of cells.
            if state is None or not self.load(sequence, state):
                raise ModelError(f"libllama could not move a sequence: {last_errors()}")

    def _is_empty(self, sequence: int) -> bool:
        return self._library.llama_memory_seq_pos_max(self._memory, self._places.at(sequence)) < 0

    def _decode(self, count: int, wanted: int, order: NDArray[np.intp] | None = None) -> Logits:
        """The logits [k, V] of the batch's first `count` tokens, of which so many are `wanted`, in an `order`."""
        self._compute(count)
        return self._copied(self._logits(wanted), order)

    def _compute(self, count: int) -> None:
        """Runs the first `count` tokens of the batch through the model."""
        self._batch.n_tokens = count
        forget_errors()
        while (status := self._library.llama_decode(self._context, self._batch)) == _FULL:
            self._grow()
        if status:
            raise ModelError(f"libllama could not compute a batch of {count} tokens: {last_errors() or status}")

    def _copied(self, logits: Logits, order: NDArray[np.intp] | None) -> Logits:
        """A copy, with the rows in an `order` if there is one, because the next batch writes to the same memory.

        It reuses the memory of an earlier copy that nobody holds any more: the system has to zero fresh memory first,
        which takes longer than the copy.
        """
        if logits.size > _MOST_KEPT:
            return logits.copy() if order is None else logits[order]
        for kept in self._copies:
            if getrefcount(kept) == _UNUSED and kept.shape == logits.shape:
                # Without "clip" the rows would be written to an array of their own first.
                _ = np.copyto(kept, logits) if order is None else np.take(logits, order, axis=0, out=kept, mode="clip")
                return kept
        # Several, as the logits before are held until there are new ones.
        self._copies = [logits.copy() if order is None else logits[order], *self._copies[:2]]
        return self._copies[0]

    def add_sequences(self) -> range:
        """Doubles the number of sequences and gives the new ones. Raises ModelError beyond the most there can be."""
        before = self.sequences
        if before == MAX_SEQUENCES:
            raise ModelError(f"libllama runs at most {MAX_SEQUENCES} sequences at once; lower max_running")
        self._share_large(2 * self.cells)
        cells = self.cells if self.shared else 2 * self.cells
        self._replace(cells, min(2 * before, MAX_SEQUENCES), shared=self.shared)
        return range(before, self.sequences)

    def share(self) -> None:
        """Has all sequences take their cells from the same ones. Raises ModelError where memory ends."""
        if not self.shared:
            self._replace(self.cells, self.sequences, shared=True)

    def separate(self) -> None:
        """Gives sequences cells of their own, as many as they had before they shared them; all are empty then."""
        for sequence in range(self.sequences):
            self.cut(sequence)
        self._replace(*self._last_apart, shared=False)
        self._places = Places(self.sequences)

    def copy(self, source: int, target: int, end: int = -1) -> None:
        """Makes the first `end` tokens of a sequence, or all, those of an empty one as well, in the same cells.

        Only where cells are shared; nothing is computed.
        """
        first, second = self._places.of((source, target))
        self._library.llama_memory_seq_cp(self._memory, first, second, -1, end)

    def cut(self, sequence: int, start: int = -1) -> bool:
        """Removes the tokens of a sequence from position `start` on, or all; False where the model cannot do that."""
        return bool(self._library.llama_memory_seq_rm(self._memory, self._places.at(sequence), start, -1))

    def size_of(self, sequence: int) -> int:
        """The bytes of a sequence's keys and values, and some more."""
        return self._library.llama_state_seq_get_size(self._context, self._places.at(sequence))

    def save(self, sequence: int) -> State | None:
        """A copy uint8 [size] of a sequence's keys and values; None where libllama cannot make it."""
        return self._states.read(self._places.at(sequence))

    def load(self, sequence: int, state: State) -> bool:
        """Fills an empty sequence with what `save` gave, uint8 [size]; False where the cache has no room for it."""
        return self._states.write(self._places.at(sequence), state)

    def _logits(self, count: int) -> Logits:
        """The memory of libllama with the logits of the last batch; a view is kept, as making one takes long."""
        key = self._logits_address(self._context), count
        if self._view[0] != key:
            memory = (ctypes.c_float * (count * self._vocab_size)).from_address(key[0])
            self._view = key, np.frombuffer(memory, np.float32).reshape(count, self._vocab_size)
        return self._view[1]

    @property
    def _memory(self) -> Any:
        return self._library.llama_get_memory(self._context)

    def _grow(self) -> None:
        try:
            if not self._share_large(2 * self.cells):
                self._replace(2 * self.cells, self.sequences, shared=self.shared)
        except ModelError as error:
            raise CacheFullError(
                f"the KV cache of {self.cells} tokens is full and cannot be doubled: {error}; "
                "run fewer requests at once or shorter ones"
            ) from error

    def _share_large(self, cells: int) -> bool:
        """Has sequences share their cells if so many of their own are too many; whether they have begun to."""
        if self.shared or cells <= self._most_apart:
            return False
        self.is_separable = False
        self.share()
        return True

    def _replace(self, cells: int, sequences: int, *, shared: bool) -> None:
        """A context of so many cells and sequences in place of the present one, with its content."""
        library, old = self._library, self._context
        params = library.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = cells, sequences, shared
        params.n_threads = params.n_threads_batch = self._threads
        params.no_perf = True
        if self._exact:
            # Flash attention would round what it reads to float16.
            params.type_k = params.type_v = _FLOAT32
            params.flash_attn_type = _NO_FLASH_ATTENTION
        forget_errors()
        new = library.llama_init_from_model(self._loaded.pointer, params)
        if not new:
            raise ModelError(f"libllama could not make a context of {cells} tokens: {last_errors() or 'no memory'}")
        states = SequenceStates(library, new, streams=1 if shared else sequences)
        if old is not None and not self._move(new, states, whole=self.shared and shared):
            library.llama_free(new)
            raise ModelError(f"libllama could not move its state: {last_errors()}")
        if old is not None:
            self._free()
        self._context, self.cells, self.sequences, self.shared = new, cells, sequences, shared
        # A batch that is under way names the places, which stay as they are.
        self._places, self._states = self._places.resized(sequences), states
        if not shared:
            self._last_apart = cells, sequences
        # The model is an argument, because it must outlive the context.
        self._free = weakref.finalize(self, _free, library, new, self._loaded)
        self._free.atexit = False

    def _move(self, new: Any, states: SequenceStates, *, whole: bool) -> bool:
        """Copies the content to another context, `whole` with what sequences share; whether that worked."""
        library, old = self._library, self._context
        if whole:
            size = library.llama_state_get_size(old)
            content = (ctypes.c_uint8 * size)()
            written = library.llama_state_get_data(old, content, size)
            return written == size and library.llama_state_set_data(new, content, size) == size
        for sequence in range(self.sequences):
            if not self._is_empty(sequence):
                state = self.save(sequence)
                if state is None or not states.write(self._places.at(sequence), state):
                    return False
        return True


def most_apart(loaded: LoadedModel, *, exact: bool) -> int:
    """The most cells of a cache whose sequences have cells of their own, which may remain unused."""
    library, model = loaded.library, loaded.pointer
    heads, of_keys = library.llama_model_n_head(model), library.llama_model_n_head_kv(model)
    width = library.llama_model_n_embd(model) * of_keys // max(heads, 1)
    cell = 2 * library.llama_model_n_layer(model) * width * (4 if exact else 2)
    return max(APART_BYTES, library.llama_model_size(model) // 4) // max(cell, 1)


def _free(library: Any, context: Any, _: LoadedModel) -> None:
    library.llama_free(context)


def _new_batch(library: Any, room: int) -> tuple[Any, tuple[NDArray[Any], ...]]:
    """A batch of libllama over arrays [room] of tokens, positions, sequences and flags; a token has one sequence."""
    tokens, positions, sequences = (np.zeros(room, np.int32) for _ in range(3))
    wanted, counts = np.zeros(room, np.int8), np.ones(room, np.int32)
    pointers = sequences.ctypes.data + np.arange(room, dtype=np.uintp) * sequences.itemsize
    fields = {"token": tokens, "pos": positions, "n_seq_id": counts, "seq_id": pointers, "logits": wanted}
    kinds = dict(library.llama_batch._fields_)
    given = {name: ctypes.cast(array.ctypes.data, kinds[name]) for name, array in fields.items()}
    batch = library.llama_batch(n_tokens=0, embd=None, **given)
    # The fields are bare addresses.
    batch.arrays = fields
    return batch, (tokens, positions, sequences, wanted)


def _logits_address(library: Any) -> Any:
    """libllama's function that tells where the logits of a context are, as an integer instead of a pointer object."""
    address = ctypes.cast(library.llama_get_logits, ctypes.c_void_p).value
    assert address is not None
    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)


def usable_threads() -> int:
    """OMP_NUM_THREADS if it is set, else the number of cores that this process may use."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if given.isdecimal() and int(given) > 0:
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
