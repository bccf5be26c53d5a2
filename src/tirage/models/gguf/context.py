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

MAX_SEQUENCES = 256
"""The most sequences of a context (`LLAMA_MAX_SEQ`)."""
FIRST_SEQUENCES = 32
"""The sequences of a new context; libllama visits all of them in every step, so there are more only when needed."""
_FULL, _BLOCK, _FEW = 1, 256, 16
_FLOAT32, _NO_FLASH_ATTENTION = 0, 0
_MOST_KEPT = 1 << 20
"""The size of logits of which copies are kept."""
_UNUSED = 3
"""The references to a kept copy that nobody else holds: the list's, a variable's and that of `getrefcount` itself."""

Ints = NDArray[np.int32]
Logits = NDArray[np.float32]


class CacheFullError(ModelError):
    """The KV cache has no room for a batch and cannot be made larger; nothing has changed."""


class Context:
    """The state of all sequences of one model: their keys and values share `cells`, one for a token or more.

    `cells` is doubled when a batch finds no room. The content is copied bit for bit, and sequences that share cells go
    on sharing them. Keys and values are float16, as llama.cpp keeps them, or `exact`: float32, with attention in
    float32. For one thread.
    """

    def __init__(self, loaded: LoadedModel, *, cells: int, threads: int, exact: bool) -> None:
        library = loaded.library
        self._loaded, self._library = loaded, library
        self._threads, self._exact = threads, exact
        self._vocab_size = library.llama_vocab_n_tokens(loaded.vocab)
        self._batch, arrays = _new_batch(library, _BLOCK)
        self._tokens, self._positions, self._sequences, self._wanted = arrays
        self._logits_address = _logits_address(library)
        self.cells = self.sequences = 0
        self._view: tuple[Any, Any] = None, None
        self._copies: list[Logits] = []
        self._context: Any = None
        self._free: Any = None
        self._replace(cells, FIRST_SEQUENCES)

    def run(self, token_ids: Sequence[int], positions: Any, sequences: Any, *, wanted: Any = True) -> Logits:
        """Logits float32 [k, V] after those of at most 256 tokens that are `wanted`.

        `positions` and `sequences` are an integer for all tokens or integers [T], `wanted` is a bool or bools [T].
        Raises CacheFullError if there is no memory for a larger cache, ModelError for any other failure; then
        sequences may have grown, and must be cut.
        """
        count = len(token_ids)
        self._tokens[:count], self._positions[:count], self._sequences[:count] = token_ids, positions, sequences
        self._wanted[:count] = wanted
        return self._decode(count, count if wanted is True else int(np.count_nonzero(wanted)))

    def step(self, token_ids: Sequence[int], positions: Sequence[int], sequences: Sequence[int]) -> Logits:
        """Logits float32 [B, V] after one token each of at most 256 sequences; raises what `run` does."""
        count = len(token_ids)
        if count > _FEW:
            return self.run(token_ids, positions, sequences)
        # One by one, which finds less of NumPy out of the processor's caches, through which the weights have passed.
        for at in range(count):
            self._tokens[at], self._positions[at], self._sequences[at] = token_ids[at], positions[at], sequences[at]
            self._wanted[at] = True
        return self._decode(count, count)

    def step_single(self, token_id: int, position: int, sequence: int) -> Logits:
        """Logits float32 [1, V] after a token of one sequence, in libllama's memory; raises what `run` does."""
        self._tokens[0], self._positions[0], self._sequences[0], self._wanted[0] = token_id, position, sequence, True
        self._compute(1)
        return self._logits(1)

    def _decode(self, count: int, wanted: int) -> Logits:
        """The logits [k, V] of the first `count` tokens of the batch, of which so many are `wanted`."""
        self._compute(count)
        return self._copied(self._logits(wanted))

    def _compute(self, count: int) -> None:
        """Runs the first `count` tokens of the batch through the model."""
        self._batch.n_tokens = count
        forget_errors()
        while (status := self._library.llama_decode(self._context, self._batch)) == _FULL:
            self._grow()
        if status:
            raise ModelError(f"libllama could not compute a batch of {count} tokens: {last_errors() or status}")

    def _copied(self, logits: Logits) -> Logits:
        """A copy, because the next batch writes to the same memory; in that of one before which nobody holds any more.

        Fresh memory has to be zeroed by the system first, which takes longer than the copy.
        """
        if logits.size > _MOST_KEPT:
            return logits.copy()
        for kept in self._copies:
            if getrefcount(kept) == _UNUSED and kept.shape == logits.shape:
                np.copyto(kept, logits)
                return kept
        # Several, as the logits before are held until there are new ones.
        self._copies = [logits.copy(), *self._copies[:2]]
        return self._copies[0]

    def add_sequences(self) -> range:
        """Doubles the number of sequences and gives the new ones. Raises ModelError beyond the most there can be."""
        before = self.sequences
        if before == MAX_SEQUENCES:
            raise ModelError(f"libllama runs at most {MAX_SEQUENCES} sequences at once; lower max_running")
        self._replace(self.cells, min(2 * before, MAX_SEQUENCES))
        return range(before, self.sequences)

    def copy(self, source: int, target: int, end: int = -1) -> None:
        """Makes the first `end` tokens of a sequence, or all, those of an empty one as well; nothing is computed."""
        self._library.llama_memory_seq_cp(self._memory, source, target, -1, end)

    def cut(self, sequence: int, start: int = -1) -> bool:
        """Removes the tokens of a sequence from position `start` on, or all; False where the model cannot do that."""
        return bool(self._library.llama_memory_seq_rm(self._memory, sequence, start, -1))

    def size_of(self, sequence: int) -> int:
        """The bytes of a sequence's keys and values."""
        return self._library.llama_state_seq_get_size(self._context, sequence)

    def save(self, sequence: int) -> NDArray[np.uint8] | None:
        """A copy uint8 [size] of a sequence's keys and values; None where libllama cannot make it."""
        size = self.size_of(sequence)
        state = np.empty(size, np.uint8)
        written = self._library.llama_state_seq_get_data(self._context, _bytes_at(state), size, sequence)
        return state if written == size else None

    def load(self, sequence: int, state: NDArray[np.uint8]) -> bool:
        """Fills an empty sequence with what `save` gave, uint8 [size]; False where the cache has no room for it."""
        return bool(self._library.llama_state_seq_set_data(self._context, _bytes_at(state), state.size, sequence))

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
            self._replace(2 * self.cells, self.sequences)
        except ModelError as error:
            raise CacheFullError(
                f"the KV cache of {self.cells} tokens is full and cannot be doubled: {error}; "
                "run fewer requests at once or shorter ones"
            ) from error

    def _replace(self, cells: int, sequences: int) -> None:
        """A context of so many cells and sequences in place of the present one, with its content."""
        library, old = self._library, self._context
        params = library.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = cells, sequences, True
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
        if old is not None and not _move(library, old, new):
            library.llama_free(new)
            raise ModelError(f"libllama could not move its state: {last_errors()}")
        if old is not None:
            self._free()
        self._context, self.cells, self.sequences = new, cells, sequences
        # The model is an argument, because it must outlive the context.
        self._free = weakref.finalize(self, _free, library, new, self._loaded)
        self._free.atexit = False


def _bytes_at(array: NDArray[np.uint8]) -> Any:
    """A pointer to the bytes of an array, as libllama's functions take it."""
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def _free(library: Any, context: Any, _: LoadedModel) -> None:
    library.llama_free(context)


def _move(library: Any, old: Any, new: Any) -> bool:
    """Copies the state of all sequences from one context to another; whether that worked."""
    size = library.llama_state_get_size(old)
    state = (ctypes.c_uint8 * size)()
    written = library.llama_state_get_data(old, state, size)
    return written == size and library.llama_state_set_data(new, state, size) == size


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
