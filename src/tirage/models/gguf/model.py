"""A GGUF model as a `StepModel`, run by libllama."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ModelError, ParamsError
from tirage.models.gguf.context import CacheFullError, Context, usable_threads
from tirage.models.gguf.header import Header, read_header
from tirage.models.gguf.library import LoadedModel, load_library, version
from tirage.models.gguf.prefixes import SHORTEST, KeptSequence, KeptSequences
from tirage.models.gguf.tokenizer import GGUFTokenizer
from tirage.models.protocol import Inputs
from tirage.models.text_only import TextOnly, prefill_whole, score_whole

Logits = NDArray[np.float32]

CHUNK = 256
"""Prompts are prefilled in chunks of this many tokens, cut at its multiples whatever else is in flight."""
UNTILED = 63
"""The most tokens whose attention libllama computes row by row; from one more on, in tiles of 64 rows.

They are those of a batch where sequences share cells, and of each sequence where they do not.
"""
UNFORKED = 16
"""Rows that are opened without a fork before sequences have cells of their own again."""
_FIRST_CELLS = 4096
_F32, _Q8_0 = 0, 8
_RECOMMENDED = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
"""Sampling defaults that a file may recommend, by the name that a generation config has for each."""


class GGUFRow:
    """One request in flight; implements `tirage.models.CachedRow`.

    `length` tokens are in the KV cache under `sequence`, which is None once the row is closed. `left` prompt tokens
    are still to be prefilled; `cached` were taken from another sequence.
    """

    __slots__ = ("cached", "hidden", "inputs", "left", "length", "sequence", "token_ids")

    def __init__(self, inputs: Inputs, sequence: int) -> None:
        self.inputs, self.sequence = inputs, sequence
        self.token_ids = list(inputs.token_ids)
        self.left, self.length, self.cached = inputs.length, 0, 0
        self.hidden: NDArray[np.float32] | None = None


class GGUFModel(TextOnly):
    """The model of a GGUF file; implements `tirage.models.StepModel`.

    Rows are sequences of one context of libllama, so that a step of all rows is one batch. Its KV cache begins with
    room for `first_cells` tokens and 8 sequences, and either is doubled when it is full; there are at most 256
    sequences. Each has cells of its own, which is faster, until the first fork, whose past both share, or the first
    batch of several drafts, and again after 16 rows without; beyond 512 MiB and a quarter of the weights all share.
    `prefix_bytes` bounds what finished requests leave in the cache for later prompts with the same beginning; 0 turns
    that off. Models with a sliding window or a recurrent state keep nothing, and share cells.

    At most `prefill_batch_tokens` tokens of several short prompts are prefilled in one batch; 0 prefills each alone.
    Where cells are not shared, only prompts of one length are. None is 256 for float32 weights, 256 for Q8_0 or 63
    where cells are shared, so that the logits are those of each prompt alone; other weights are prefilled alone, as
    libllama's products of them depend on the whole batch.
    `dtype` is that of keys, values and attention: "float16", as in llama.cpp, "float32", or "auto", which is float32
    for a file whose weights are. `threads` is by default OMP_NUM_THREADS or the number of usable cores; `gpu_layers`
    None is libllama's default, which is all of them where it was built for a GPU. The last bits of a row's logits may
    depend on the other rows of a step. Raises ModelError for a file that cannot be used.
    """

    described = "a GGUF model"

    def __init__(
        self,
        path: Path,
        *,
        dtype: str = "auto",
        prefix_bytes: int = 256 << 20,
        prefill_batch_tokens: int | None = None,
        threads: int | None = None,
        gpu_layers: int | None = None,
        first_cells: int = _FIRST_CELLS,
    ) -> None:
        self.header = read_header(path)
        self._library = library = load_library()
        self._threads = usable_threads() if threads is None else threads
        loaded = LoadedModel(library, path, gpu_layers=gpu_layers)
        _check_kind(loaded, self.header)
        self.tokenizer = GGUFTokenizer(loaded, self.header)
        self.vocab_size, self.max_length = len(self.tokenizer), library.llama_model_n_ctx_train(loaded.pointer)
        exact = dtype == "float32" or (dtype == "auto" and self.header.tensor_types == {_F32})
        self._dtype = "float32" if exact else "float16"
        self._together = prefill_batch_tokens
        whole = library.llama_model_is_recurrent(loaded.pointer) or library.llama_model_is_hybrid(loaded.pointer)
        self._resumes = not whole and library.llama_model_n_swa(loaded.pointer) == 0
        cells = max(CHUNK, first_cells)
        self._context = Context(loaded, cells=cells, threads=self._threads, exact=exact, shared=not self._resumes)
        self._free = list(reversed(range(self._context.sequences)))
        self._unforked = 0
        self._kept = KeptSequences(prefix_bytes if self._resumes else 0)

    # --- inputs --------------------------------------------------------------------------------------------------

    def check(self, inputs: Inputs) -> None:
        """Raises ParamsError for anything besides token ids, and for ids beyond the vocabulary."""
        super().check(inputs)
        if max(inputs.token_ids, default=0) >= self.vocab_size:
            raise ParamsError(f"prompt token ids must be below {self.vocab_size}, got {max(inputs.token_ids)}")

    # --- rows ----------------------------------------------------------------------------------------------------

    def open(self, inputs: Inputs) -> GGUFRow:
        """A row for the inputs, which starts from the longest kept beginning. Raises ParamsError as `check` does."""
        self.check(inputs)
        self._unforked += 1
        if self._context.shared and self._context.is_separable and self._unforked > UNFORKED:
            self._separate()
        row = GGUFRow(inputs, self._new_sequence())
        # The last token is computed in any case: its logits are wanted.
        found = None if inputs.score else self._kept.find(row.token_ids[:-1], inputs.salt)
        if found is not None:
            self._begin(row, *found)
        return row

    def fork(self, cache: GGUFRow) -> GGUFRow:
        """A second row with the same past, which both share."""
        self._restore(cache)
        self._share()
        other = GGUFRow(cache.inputs, self._new_sequence())
        self._context.copy(cache.sequence, other.sequence)
        other.token_ids, other.length, other.left = [*cache.token_ids], cache.length, cache.left
        return other

    def close(self, row: GGUFRow, *, reuse: bool = False) -> None:
        """Frees a row; with `reuse` its sequence may stay for later prompts."""
        if not reuse or not self._resumes or row.length < SHORTEST:
            self._free_sequence(row.sequence)
        else:
            ids = np.array(row.token_ids[: row.length], np.int32)
            size = self._context.size_of(row.sequence)
            for gone in self._kept.add(KeptSequence(ids, row.inputs.salt, size, row.sequence)):
                self._drop(gone)
        self._tidy_up()

    def forget(self) -> None:
        """Frees every kept sequence."""
        for kept in self._kept.take_all():
            self._drop(kept)

    def generation_config(self) -> dict[str, Any]:
        """The ids that end a generation, and the sampling defaults that the file recommends."""
        metadata = self.header.metadata
        found = {name: metadata[key] for key, name in _RECOMMENDED.items() if key in metadata}
        return {"eos_token_id": list(self.tokenizer.end_ids), **found}

    def numerics(self) -> dict[str, Any]:
        """What the last bits of the logits depend on, besides the weights and the other rows of a step."""
        return {"llama-cpp-python": version(), "system": self._library.llama_print_system_info().decode().strip(),
                "threads": self._threads, "dtype": self._dtype}  # fmt: skip

    # --- prefill -------------------------------------------------------------------------------------------------

    def prefill(self, token_ids: Sequence[int]) -> tuple[Logits, GGUFRow]:
        """Logits [V] after the last id, and the row that continues from there; ModelError beyond the context."""
        return prefill_whole(self, token_ids)

    def score(self, token_ids: Sequence[int]) -> Logits:
        """Logits [T, V] after each of the T ids; ModelError beyond the context."""
        return score_whole(self, token_ids)

    def prefill_chunk(self, row: GGUFRow) -> Logits:
        """Logits [k, V] of the next chunk of the prompt: k = 1 at its end and 0 before; all with `score`.

        Raises ModelError for a prompt that is longer than the context, and when there is no memory for it.
        """
        start = row.length
        end = min(row.inputs.length, (start // CHUNK + 1) * CHUNK)
        logits = self._extend(row, end, last_only=not row.inputs.score)
        row.left = row.inputs.length - end
        return logits if row.inputs.score or not row.left else logits[:0]

    def choose_prefill(self, rows: Sequence[GGUFRow]) -> list[int]:
        """The indices of the first row and of those after it whose prompts end in the same batch as its own."""
        first = self._in_one_batch(rows[0])
        chosen, room = [0], self._most_together() - first
        for index in range(1, len(rows)):
            count = self._in_one_batch(rows[index])
            # With cells of their own, what is longer than the shortest would be computed in a batch of its own.
            if count <= room and (self._context.shared or count == first):
                chosen.append(index)
                room -= count
        return chosen

    def prefill_batch(self, rows: Sequence[GGUFRow]) -> Logits:
        """Logits float32 [B, V] after the prompts of rows that `choose_prefill` has chosen, in one batch.

        Raises ModelError as `prefill_chunk` does; then no row has advanced.
        """
        parts = [np.arange(row.length, row.inputs.length) for row in rows]
        token_ids = [token for row in rows for token in row.token_ids[row.length :]]
        sequences = np.repeat([row.sequence for row in rows], [len(part) for part in parts])
        ends = np.concatenate([part == part[-1] for part in parts])
        logits = self._run(rows, token_ids, np.concatenate(parts), sequences, ends)
        for row in rows:
            row.length, row.left = row.inputs.length, 0
        return logits

    def _most_together(self) -> int:
        """The most tokens of short prompts in one batch."""
        if self._together is not None:
            return min(self._together, CHUNK)
        types = self.header.tensor_types
        if types == {_F32}:
            return CHUNK
        return 0 if not types <= {_F32, _Q8_0} else UNTILED if self._context.shared else CHUNK

    def _in_one_batch(self, row: GGUFRow) -> int:
        """The tokens that a row adds to a batch that ends its prompt; more than any batch has where it cannot."""
        chunk_end = (row.length // CHUNK + 1) * CHUNK
        ends = not row.inputs.score and row.inputs.length <= min(chunk_end, self.max_length)
        return row.left if ends else CHUNK + 1

    def _extend(self, row: GGUFRow, end: int, *, last_only: bool) -> Logits:
        """The logits after the tokens of a row up to position `end`, which join its sequence."""
        start = row.length
        if end > self.max_length:
            raise ModelError(f"the model's context holds {self.max_length} tokens, got {end}; shorten the prompt")
        wanted = np.arange(start, end) >= end - 1 if last_only else True
        logits = self._run([row], row.token_ids[start:end], np.arange(start, end), row.sequence, wanted)
        row.length = end
        return logits

    # --- decode --------------------------------------------------------------------------------------------------

    def decode(self, token_ids: Sequence[int], caches: Sequence[GGUFRow]) -> Logits:
        """Logits [B, V] after one more id per row; ModelError beyond the context, and when there is no memory."""
        positions, sequences = list[int](), list[int]()
        for row in caches:
            if row.length < len(row.token_ids):
                self._restore(row)
            positions.append(row.length)
            sequences.append(row.sequence)
        if max(positions) >= self.max_length:
            raise ModelError(f"the model's context holds {self.max_length} tokens, got {max(positions) + 1}")
        # One batch: there are no more rows than a batch has room for.
        logits = self._computed(caches, lambda: self._context.step(token_ids, positions, sequences))
        for token_id, row in zip(token_ids, caches, strict=True):
            row.token_ids.append(token_id)
            row.length += 1
        return logits

    def decode_single(self, token_id: int, row: GGUFRow) -> Logits:
        """Logits [1, V] after one more id of a row, valid until the next call; raises what `decode` does."""
        if row.length < len(row.token_ids) or row.length >= self.max_length:
            return self.decode([token_id], [row])
        try:
            logits = self._context.step_single(token_id, row.length, row.sequence)
        except CacheFullError:
            return self.decode([token_id], [row])
        except ModelError:
            self._cut(row)
            raise
        row.token_ids.append(token_id)
        row.length += 1
        return logits

    @property
    def draft_refusal(self) -> str:
        """Why rows cannot have drafts; empty where they can."""
        return "" if self._resumes else "its state (recurrent, or a sliding window) cannot give tokens back"

    def room_for_draft(self, row: GGUFRow) -> int:
        """The most tokens of a draft that a row may read now."""
        return min(self.max_length - len(row.token_ids) - 1, CHUNK - 1)

    def extend_rows(self, token_ids: Sequence[Sequence[int]], rows: Sequence[GGUFRow]) -> Logits:
        """Logits [n, V] after each of the ids of each row, in as few batches as hold them; ModelError as `decode`."""
        for row in rows:
            self._restore(row)
        if len(rows) > 1:
            # They have different lengths.
            self._share()
        parts, first = list[Logits](), 0
        try:
            while first < len(rows):
                end = first + 1
                while end < len(rows) and sum(map(len, token_ids[first : end + 1])) <= CHUNK:
                    end += 1
                parts.append(self._read_ahead(token_ids[first:end], rows[first:end]))
                first = end
        except BaseException:
            for row in rows[:first]:
                self._cut(row)
            raise
        for ids, row in zip(token_ids, rows, strict=True):
            row.token_ids += ids
            row.length += len(ids)
        return np.concatenate(parts)

    def _read_ahead(self, token_ids: Sequence[Sequence[int]], rows: Sequence[GGUFRow]) -> Logits:
        """The logits [n, V] of one batch, whose rows do not count its tokens yet."""
        counts = [len(ids) for ids in token_ids]
        positions = np.concatenate([row.length + np.arange(n) for row, n in zip(rows, counts, strict=True)])
        if positions.max() >= self.max_length:
            raise ModelError(f"the model's context holds {self.max_length} tokens, got {positions.max() + 1}")
        sequences = np.repeat([row.sequence for row in rows], counts)
        return self._run(rows, [token for ids in token_ids for token in ids], positions, sequences, True)

    def truncate_row(self, row: GGUFRow, count: int) -> None:
        """Takes back the last `count` ids that `extend_rows` has read."""
        del row.token_ids[-count:]
        if row.length > len(row.token_ids):
            row.length = len(row.token_ids)
            self._cut(row)

    def _run(
        self, rows: Sequence[GGUFRow], token_ids: Sequence[int], positions: Any, sequences: Any, wanted: Any
    ) -> Logits:
        return self._computed(rows, lambda: self._context.run(token_ids, positions, sequences, wanted=wanted))

    def _computed(self, rows: Sequence[GGUFRow], compute: Callable[[], Logits]) -> Logits:
        """What the context computes; kept sequences make room where memory ends, and a failure leaves the rows be."""
        while True:
            try:
                return compute()
            except CacheFullError:
                if not len(self._kept):
                    raise
                self._drop(self._kept.take_oldest())
            except ModelError:
                for row in rows:
                    self._cut(row)
                raise

    def _cut(self, row: GGUFRow) -> None:
        """Takes away what a failed batch may have added; a model that cannot do that begins again."""
        if not self._context.cut(row.sequence, row.length):
            self._context.cut(row.sequence)
            row.length = 0

    def _restore(self, row: GGUFRow) -> None:
        """Computes again what a failed batch has cost a row."""
        while not row.left and row.length < len(row.token_ids):
            self._extend(row, min(len(row.token_ids), (row.length // CHUNK + 1) * CHUNK), last_only=True)

    # --- sequences -----------------------------------------------------------------------------------------------

    def _begin(self, row: GGUFRow, kept: KeptSequence, length: int) -> None:
        """Has a row start with the first tokens of a kept sequence, unless there is no room to copy that back."""
        if not self._context.shared:
            state = kept.state if kept.sequence is None else self._context.save(kept.sequence)
            if state is None or not self._context.load(row.sequence, state):
                self._context.cut(row.sequence)
                return
            self._context.cut(row.sequence, length)
        elif not self._share_kept(row, kept, length):
            return
        row.length = row.cached = length
        row.left = row.inputs.length - length

    def _share_kept(self, row: GGUFRow, kept: KeptSequence, length: int) -> bool:
        """Has a row share the first cells of a kept sequence; whether there is room for it."""
        if kept.sequence is None:
            assert kept.state is not None
            sequence = self._new_sequence()
            if not self._context.load(sequence, kept.state):
                self._free_sequence(sequence)
                return False
            kept.sequence = sequence
        self._context.copy(kept.sequence, row.sequence, length)
        return True

    def _share(self) -> None:
        """Has sequences share cells: those of a fork, and of batches in which each adds another number of tokens."""
        self._context.share()
        self._unforked = 0

    def _separate(self) -> None:
        """Gives sequences cells of their own if no row is open."""
        if len(self._kept.resident) == self._context.sequences - len(self._free):
            for each in self._kept.resident:
                self._copy_out(each)
            self._context.separate()
            self._free = list(reversed(range(self._context.sequences)))

    def _tidy_up(self) -> None:
        """Empties the context once no row is open, since attention visits every cell that is taken.

        Not before: tokens in the cells between those of others change the order of sums, and with it the last bits. A
        kept sequence that is the only one stays, for a conversation that goes on.
        """
        kept = self._kept.resident
        if 1 < len(kept) == self._context.sequences - len(self._free):
            for each in kept:
                self._copy_out(each)

    def _copy_out(self, kept: KeptSequence) -> None:
        assert kept.sequence is not None
        if kept.state is None:
            kept.state = self._context.save(kept.sequence)
        if kept.state is None:
            self._kept.remove(kept)
        self._drop(kept)

    def _drop(self, kept: KeptSequence) -> None:
        """Frees what a kept sequence has in the context."""
        if kept.sequence is not None:
            self._free_sequence(kept.sequence)
            kept.sequence = None

    def _new_sequence(self) -> int:
        if not self._free and (resident := self._kept.resident):
            self._copy_out(resident[0])
        if not self._free:
            self._free = list(reversed(self._context.add_sequences()))
        return self._free.pop()

    def _free_sequence(self, sequence: int) -> None:
        self._context.cut(sequence)
        # The lowest is taken next, so that rows that are opened one after the other are computed in that order.
        self._free = sorted([*self._free, sequence], reverse=True)


def _check_kind(loaded: LoadedModel, header: Header) -> None:
    """Raises ModelError for a model that does not generate text from left to right."""
    library, model = loaded.library, loaded.pointer
    kinds = {
        "an encoder": library.llama_model_has_encoder(model),
        "no decoder": not library.llama_model_has_decoder(model),
        "diffusion": library.llama_model_is_diffusion(model),
        "attention in both directions": header.of_architecture("attention.causal") is False,
    }
    for kind, present in kinds.items():
        if present:
            raise ModelError(
                f"{header.path} must be a model that generates text token by token, got one with {kind} "
                f"({header.architecture})"
            )
