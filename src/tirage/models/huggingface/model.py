"""Any causal language model of `transformers` as a `StepModel`."""

from __future__ import annotations

import copy
import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from tirage.errors import ParamsError, nearest
from tirage.models.counts import checked_count
from tirage.models.huggingface.adapters import Adapters
from tirage.models.huggingface.batched_cache import BatchedKVCache, ConcatenatedCache, leave_group
from tirage.models.huggingface.batched_prefill import (
    PREFILL_BATCH_TOKENS,
    choose_rows,
    enter_caches,
    is_plain_prompt,
    padded_ids,
    padded_positions,
)
from tirage.models.huggingface.cache_layers import cropped, forked, is_croppable, is_plain, size_of, truncated
from tirage.models.huggingface.forward import (
    ForwardPass,
    context_of,
    floats,
    hidden_states,
    right_aligned_mask,
    width_of,
)
from tirage.models.huggingface.media import MediaProcessor
from tirage.models.huggingface.packed_linear import pack
from tirage.models.huggingface.prefix import CachedPrefix, PrefixStore, key_of
from tirage.models.huggingface.rope import Rope
from tirage.models.huggingface.row import HuggingFaceRow, drop_caches
from tirage.models.huggingface.single_query_attention import single_query_attention
from tirage.models.protocol import Inputs
from tirage.models.text_only import prefill_whole, score_whole

Logits = NDArray[np.float32]
DecodePath = Literal["joined", "alone", "recomputed"]
GroupKey = tuple[int, int, str | None]
"""Bucket of lengths, stage of the rotary frequencies, and an adapter that cannot be mixed with others."""

CHUNK = 256
"""Prompts are prefilled in chunks of this many tokens, cut at its multiples whatever else is in flight."""
# Attention over a batched KV cache is paid for the longest row, so rows far apart in length decode in separate passes.
_BUCKETS = (1024, 4096, 16384)
_log = logging.getLogger("tirage")


class HuggingFaceModel:
    """A `transformers` causal language model; implements `tirage.models.StepModel`.

    Prompts are prefilled by the model's own forward pass in chunks of `chunk` tokens, or whole if that is None. A
    prompt may continue from a cached prefix only if `resumes`. `path` says how rows decode: "joined" in one batched
    pass, "alone" in a pass each, and "recomputed", for models whose state is not in a cache, by a pass over the whole
    text. `tirage.models.huggingface.probe` chooses all three. Rows whose rotary frequencies differ (longrope, dynamic
    NTK) never share a pass. The last bits of a row's logits may depend on the other rows of a joined pass.

    Short prompts that wait together are prefilled in one pass of at most `prefill_batch_tokens` tokens, padding
    included, if `joins_prompts`, which the probe decides as well; with 0 every prompt is prefilled alone, and then the
    logits after it do not depend on other requests.

    With `enable_lora` adapters may be loaded while the model runs, and its layers are not packed.

    `prefix_bytes` bounds the memory of the prefix cache; 0 turns it off. `packed` changes the memory layout of the
    weights of linear layers in place, for float32 and bfloat16 on a CPU: the module runs faster, on some processors
    twice as fast, but must not be used elsewhere and can no longer be trained. Raises ModelError for an adapter with
    which the model cannot run, and ParamsError for `prefill_batch_tokens` and `prefix_bytes` that are no integers of at
    least 0.
    """

    def __init__(
        self,
        module: Any,
        *,
        adapters: Mapping[str, Any] | None = None,
        enable_lora: bool = False,
        max_length: int | None = None,
        prefix_bytes: int = 256 << 20,
        prefill_batch_tokens: int = PREFILL_BATCH_TOKENS,
        quantized: bool = False,
        packed: bool = False,
        media: MediaProcessor | None = None,
    ) -> None:
        self.module, self.quantized, self.media = module, quantized, media
        self.adapters = Adapters(module, adapters or {}, grows=enable_lora)
        self.forward = ForwardPass(module, self.adapters)
        self.config, self.device = self.forward.config, module.device
        self.vocab_size = width_of(module)
        self.max_length = max_length or context_of(self.config)
        self.path: DecodePath = "joined"
        self.chunk: int | None = CHUNK
        self.resumes = self.joins_prompts = True
        self.prefill_batch_tokens = checked_count("prefill_batch_tokens", prefill_batch_tokens)
        self.prefixes = PrefixStore(checked_count("prefix_bytes", prefix_bytes))
        # peft knows the layers of PyTorch alone.
        self.packed = packed and not enable_lora and pack(module, *self.adapters.trees)
        self.rope = Rope(module, self.config)
        self._groups: dict[GroupKey, BatchedKVCache | ConcatenatedCache] = {}

    # --- inputs --------------------------------------------------------------------------------------------------

    def check(self, inputs: Inputs) -> None:
        """Raises ParamsError for an unknown adapter, for ids beyond the vocabulary and for unsupported inputs."""
        self._check(inputs, self.adapters.names)

    def _check(self, inputs: Inputs, adapters: Set[str]) -> None:
        if inputs.adapter is not None and inputs.adapter not in adapters:
            known, hint = ", ".join(sorted(adapters)) or "none", nearest(inputs.adapter, adapters)
            raise ParamsError(f"adapter must be a loaded one ({known}), got {inputs.adapter!r}{hint}")
        known = self.module.get_input_embeddings().weight.shape[0]
        if max(inputs.token_ids, default=0) >= known:
            raise ParamsError(f"prompt token ids must be below {known}, got {max(inputs.token_ids)}")
        if inputs.media and self.path == "recomputed":
            raise ParamsError("prompt images and audio must not be given, this model reads token ids at every step")
        if inputs.embeds is not None:
            width = self.module.get_input_embeddings().embedding_dim
            if self.path == "recomputed":
                raise ParamsError("prompt embeds must not be given, this model reads token ids again at every step")
            if np.ndim(inputs.embeds) != 2 or np.shape(inputs.embeds)[1] != width:
                raise ParamsError(f"prompt embeds must have shape [T, {width}], got {list(np.shape(inputs.embeds))}")

    def read_media(self, text: str, given: Mapping[str, Sequence[Any]], *, special: bool = True) -> Inputs:
        """The inputs for a text with placeholders for `images` and `audio`; ParamsError if they do not match.

        Images are PIL images or uint8 [H, W, 3], audio is float [samples].
        """
        if self.media is None:
            name = next(name for name, items in given.items() if len(items))
            raise ParamsError(f"prompt {name} must not be given, this model takes text and token ids only")
        return self.media.read(text, given, special=special)

    @property
    def media_marks(self) -> Mapping[str, str]:
        """The placeholders of "image" and "audio" in a text, for those kinds that the model takes."""
        return {} if self.media is None else self.media.marks

    @property
    def sampling_rate(self) -> int | None:
        """The sampling rate in Hz of the audio that the model takes; None if it takes none."""
        return None if self.media is None else self.media.sampling_rate

    # --- rows ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def open(self, inputs: Inputs) -> HuggingFaceRow:
        """A row for the inputs, which starts from the longest cached prefix. Raises ParamsError as `check` does.

        An adapter that was retired after `check` still serves the requests accepted before.
        """
        self._check(inputs, self.adapters.present)
        row = HuggingFaceRow(inputs)
        if self.path != "recomputed":
            row.cache = self.forward.new_cache()
            row.positions = self.forward.positions(row)
            self._reuse_prefix(row)
        return row

    @torch.inference_mode()
    def fork(self, cache: HuggingFaceRow) -> HuggingFaceRow:
        """A second row with the same past, on the same tensors where a row that goes on leaves them as they are."""
        if self._is_dropped(cache):
            self._prefill_again(cache)
        other = copy.copy(cache)
        other.token_ids, other.group = list(cache.token_ids), None
        other.cache = forked(cache.cache, cache.length) if cache.group is None else cache.group.extract(cache)
        return other

    @torch.inference_mode()
    def close(self, row: HuggingFaceRow, *, reuse: bool = False) -> None:
        """Frees a row; with `reuse` its cache is kept as a prefix for later prompts."""
        if reuse and row.inputs.embeds is None and self.path != "recomputed" and not self._is_dropped(row):
            self._keep_prefix(row)
        row.closed, row.cache = True, None
        if row.group is not None:
            leave_group(row)
        self._drop_empty_groups()

    def forget(self) -> None:
        """Clears the prefix cache."""
        self.prefixes.clear()

    def numerics(self) -> dict[str, Any]:
        """What the last bits of the logits depend on, besides the weights and the other rows of a pass."""
        return {
            "torch": torch.__version__,
            "device": str(self.device),
            "dtype": "int8" if self.quantized else str(self.module.dtype).removeprefix("torch."),
            "packed": self.packed,
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
        }

    # --- prefill -------------------------------------------------------------------------------------------------

    def prefill(self, token_ids: Sequence[int]) -> tuple[Logits, HuggingFaceRow]:
        """Logits [V] after the last id, and the row that continues from there."""
        return prefill_whole(self, token_ids)

    def score(self, token_ids: Sequence[int]) -> Logits:
        """Logits [T, V] after each of the T ids."""
        return score_whole(self, token_ids)

    @torch.inference_mode()
    def prefill_chunk(self, row: HuggingFaceRow) -> Logits:
        """Logits [k, V] of the next chunk of the prompt: k = 1 at its end and 0 before; all with `score`."""
        start = row.length
        end = row.inputs.length
        # A cached prefix is continued token by token if the model cannot be prefilled in chunks.
        size = self.chunk or (1 if row.cached else None)
        if size is not None and (start or not row.inputs.media):
            end = min(end, (start // size + 1) * size)
        row.left = row.inputs.length - end
        everything = row.inputs.score
        out = self._prefill_positions(row, start, end, 0 if everything else 1)
        row.length = end
        row.next_position = None if row.positions is None else row.positions[..., -1:] + 1
        row.hidden = hidden_states(out)[0] if row.inputs.hidden_states else None
        if row.left and not everything:
            return np.empty((0, self.vocab_size), np.float32)
        return floats(out.logits[0] if everything else out.logits[0, -1:])

    def choose_prefill(self, rows: Sequence[HuggingFaceRow]) -> list[int]:
        """The indices of the rows that `prefill_batch` takes next, the first of them included."""
        limit = self.prefill_batch_tokens
        return choose_rows(rows, [self._prefill_key(row) for row in rows], limit) if limit else [0]

    def _prefill_key(self, row: HuggingFaceRow) -> Hashable:
        """What rows must have in common to be prefilled in one pass; None for a row that is prefilled alone."""
        length = row.inputs.length
        whole = self.chunk is None or length <= self.chunk
        alone = not (whole and self.joins_prompts and self.path == "joined" and self.rope.may_share(length))
        if alone or not is_plain_prompt(row):
            return None
        return self.rope.stage(length), self.adapters.group_key(row.inputs.adapter)

    @torch.inference_mode()
    def prefill_batch(self, rows: Sequence[HuggingFaceRow]) -> Logits:
        """Logits [B, V] after the prompts of rows that `choose_prefill` chose; no row has advanced if it raises."""
        ids, mask = padded_ids(rows, self.device)
        cache, longest = self.forward.new_cache(), max(row.inputs.length for row in rows)
        with self.rope.for_length(longest, longest):
            out = self.forward.run(rows, ids, mask, padded_positions(rows), cache, keep=1, first=True)
        logits = floats(out.logits[:, -1])
        enter_caches(rows, cache)
        return logits

    def _prefill_positions(self, row: HuggingFaceRow, start: int, end: int, keep: int) -> Any:
        ids = self.forward.ids(row.token_ids[start:end])
        extra = {} if start else self.forward.media(row.inputs.media)
        if row.inputs.embeds is not None:
            extra["inputs_embeds"] = self.forward.embeds(row.inputs.embeds[start:end])
        positions = None if row.positions is None else row.positions[..., start:end]
        mask = self.forward.ones(end)
        first = start == 0 or row.inputs.embeds is not None
        with self.rope.for_length(row.rope_length, end):
            return self.forward.run([row], ids, mask, positions, row.cache, keep=keep, first=first, **extra)

    def _prefill_again(self, row: HuggingFaceRow) -> None:
        """Rebuilds the cache of a row, after a failed step or for the rotary frequencies of a longer text."""
        if row.group is not None:
            leave_group(row)
        row.cache, row.length, row.cached, row.left = self.forward.new_cache(), 0, 0, row.inputs.length
        try:
            while row.left:
                self.prefill_chunk(row)
            for start, end in self._output_chunks(row):
                self._prefill_output(row, row.token_ids[start:end])
        except BaseException:
            drop_caches([row])
            raise

    def _output_chunks(self, row: HuggingFaceRow) -> Iterator[tuple[int, int]]:
        """Slices of the output in `token_ids`; the tokens of each were decoded with the same rotary frequencies."""
        start, total = len(row.inputs.token_ids), len(row.token_ids)
        before = row.inputs.length - start
        while start < total:
            end = min(start + (self.chunk or 1), total)
            first, last = before + start + 1, before + end
            if row.rope_length < last and self.rope.stage(max(row.rope_length, first)) != self.rope.stage(last):
                end = start + 1
            yield start, end
            start = end

    @torch.inference_mode()
    def extend_row(self, row: HuggingFaceRow, token_ids: Sequence[int]) -> Logits:
        """Logits [1, V] after the last of more ids of a row, which is read alone; one by one where that must be."""
        if self.path == "recomputed" or self.chunk is None or not self.resumes or self.rope.varies:
            return [self.decode([token_id], [row]) for token_id in token_ids][-1]
        if self._is_dropped(row):
            self._prefill_again(row)
        if row.group is not None:
            leave_group(row)
        try:
            out = self._prefill_output(row, token_ids)
        except BaseException:
            drop_caches([row])
            raise
        row.token_ids += token_ids
        return floats(out.logits[0, -1:])

    def _prefill_output(self, row: HuggingFaceRow, token_ids: Sequence[int], keep: int = 1) -> Any:
        end = row.length + len(token_ids)
        steps = torch.arange(len(token_ids), device=self.device)
        positions = None if row.next_position is None else row.next_position + steps
        with self.rope.for_length(max(row.rope_length, end), end):
            ids, mask = self.forward.ids(token_ids), self.forward.ones(end)
            out = self.forward.run([row], ids, mask, positions, row.cache, keep=keep)
        row.length = end
        row.next_position = None if row.next_position is None else row.next_position + len(token_ids)
        return out

    # --- drafts --------------------------------------------------------------------------------------------------

    # Measured by `benchmarks/speculation.py` on a CPU: a pass of 6 tokens takes no longer than one of a single token.
    draft_cost = 0.06

    @property
    def draft_refusal(self) -> str:
        """Why rows cannot have drafts; empty where they can."""
        if self.path == "recomputed" or self.chunk is None or not self.resumes:
            return "it does not read several tokens of a text that has begun in one pass"
        if self.rope.varies:
            return "its rotary frequencies change with the length of a text"
        return "" if is_plain(self.forward.new_cache()) else "its cache has layers that cannot give tokens back"

    def room_for_draft(self, row: HuggingFaceRow) -> int:
        """The most tokens of a draft that a row may read now: none beyond a sliding window, nor with media."""
        inputs = row.inputs
        if inputs.hidden_states or inputs.media or inputs.embeds is not None:
            return 0
        return self._keeps_all - row.length - 1

    @cached_property
    def _keeps_all(self) -> int:
        """The length up to which every layer of a cache keeps all positions."""
        windows = [getattr(layer, "sliding_window", None) for layer in self.forward.new_cache().layers]
        return min([self.max_length, *(window - 1 for window in windows if window)])

    @torch.inference_mode()
    def extend_rows(self, token_ids: Sequence[Sequence[int]], rows: Sequence[HuggingFaceRow]) -> Logits:
        """Logits [n, V] after each of the ids of each row: a pass for each row with several, one for all others."""
        parts: dict[int, Logits] = {}
        single = [i for i, ids in enumerate(token_ids) if len(ids) == 1]
        several = [i for i, ids in enumerate(token_ids) if len(ids) > 1]
        try:
            for i in several:
                parts[i] = self._read_draft(rows[i], token_ids[i])
            if single:
                together = self.decode([token_ids[i][0] for i in single], [rows[i] for i in single])
                parts |= {i: together[at : at + 1] for at, i in enumerate(single)}
        except BaseException:
            for i in parts:
                self.truncate_row(rows[i], len(token_ids[i]))
            raise
        return parts[0] if len(rows) == 1 else np.concatenate([parts[i] for i in range(len(rows))])

    def _read_draft(self, row: HuggingFaceRow, token_ids: Sequence[int]) -> Logits:
        if self._is_dropped(row):
            self._prefill_again(row)
        if row.group is not None:
            leave_group(row)
        row.drafted = True
        try:
            out = self._prefill_output(row, token_ids, keep=len(token_ids))
        except BaseException:
            drop_caches([row])
            raise
        row.token_ids += token_ids
        return floats(out.logits[0, -len(token_ids) :])

    @torch.inference_mode()
    def truncate_row(self, row: HuggingFaceRow, count: int) -> None:
        """Takes back the last `count` ids that `extend_rows` has read."""
        del row.token_ids[-count:]
        if row.group is not None:
            leave_group(row)
        if row.cache is None:
            return
        row.length -= count
        row.cache = truncated(row.cache, row.length)
        row.next_position = None if row.next_position is None else row.next_position - count

    # --- decode --------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def decode(self, token_ids: Sequence[int], caches: Sequence[HuggingFaceRow]) -> Logits:
        """Logits [B, V] after one more id per row."""
        for row in caches:
            if self._is_dropped(row):
                self._prefill_again(row)
        for token_id, row in zip(token_ids, caches, strict=True):
            if self.rope.varies and self._changes_rope(row, token_id):
                row.rope_length = row.length + 1
                self._prefill_again(row)
        before = [row.length for row in caches]
        try:
            with single_query_attention():
                logits = self._step(token_ids, caches)
        except BaseException:
            drop_caches([row for row, length in zip(caches, before, strict=True) if row.length != length])
            raise
        for token_id, row in zip(token_ids, caches, strict=True):
            row.token_ids.append(token_id)
        return logits

    def _step(self, token_ids: Sequence[int], rows: Sequence[HuggingFaceRow]) -> Logits:
        if self.path == "joined":
            return self._step_joined(token_ids, rows)
        step = self._recompute if self.path == "recomputed" else self._step_alone
        return np.concatenate([step(row, token_id) for row, token_id in zip(rows, token_ids, strict=True)])

    def _step_alone(self, row: HuggingFaceRow, token_id: int) -> Logits:
        if row.group is not None:
            leave_group(row)
        length, ids = row.length + 1, self.forward.ids([token_id])
        try:
            with self.rope.for_length(length, length):
                out = self.forward.run([row], ids, self.forward.ones(length), row.next_position, row.cache, keep=1)
        except BaseException:
            drop_caches([row])
            raise
        row.length = length
        advance([row], out)
        return floats(out.logits[:, -1])

    def _recompute(self, row: HuggingFaceRow, token_id: int) -> Logits:
        ids = [*row.token_ids, token_id]
        with self.rope.for_length(len(ids), len(ids)):
            mask = self.forward.ones(len(ids))
            out = self.forward.run([row], self.forward.ids(ids), mask, None, None, keep=1, first=True)
        row.length = len(ids)
        advance([row], out)
        return floats(out.logits[:, -1])

    def _step_joined(self, token_ids: Sequence[int], rows: Sequence[HuggingFaceRow]) -> Logits:
        members: dict[GroupKey, list[int]] = {}
        logits = np.empty((len(rows), self.vocab_size), np.float32)
        for index, row in enumerate(rows):
            if self.rope.may_share(row.length + 1) and not (row.drafted and len(rows) == 1):
                members.setdefault(self._group_key(row), []).append(index)
            else:
                logits[index] = self._step_alone(row, token_ids[index])
        for key, indices in members.items():
            part = self._step_group(key, [rows[i] for i in indices], [token_ids[i] for i in indices])
            if len(indices) == len(rows):
                logits = part
            else:
                logits[indices] = part
        if len(self._groups) > len(members):
            self._drop_empty_groups()
        return logits

    def _group_key(self, row: HuggingFaceRow) -> GroupKey:
        """What rows must have in common to share the next pass."""
        bucket = sum(row.length >= bound for bound in _BUCKETS)
        return bucket, self.rope.stage(row.length + 1), self.adapters.group_key(row.inputs.adapter)

    def _step_group(self, key: GroupKey, rows: list[HuggingFaceRow], token_ids: list[int]) -> Logits:
        if key not in self._groups:
            self._groups[key] = BatchedKVCache() if is_plain(self.forward.new_cache()) else ConcatenatedCache()
        group = self._groups[key]
        try:
            order = group.set_rows(rows)
        except BaseException:
            self._drop_group(key, rows)
            raise
        index_of = {id(row): index for index, row in enumerate(rows)}
        ids = self.forward.ids([token_ids[index_of[id(row)]] for row in order]).reshape(-1, 1)
        mask = right_aligned_mask([row.length for row in order], self.device)
        next_positions = [row.next_position for row in order if row.next_position is not None]
        positions = torch.cat(next_positions, dim=-2) if next_positions else None
        try:
            longest = max(row.length for row in order) + 1
            with self.rope.for_length(longest, longest):
                out = self.forward.run(order, ids, mask, positions, group.cache, keep=1)
        except BaseException:
            if not group.rollback():
                self._drop_group(key, rows)
            raise
        group.advance()
        advance(order, out)
        logits = floats(out.logits[:, -1])
        slots = {id(row): slot for slot, row in enumerate(order)}
        wanted = [slots[id(row)] for row in rows]
        return logits if wanted == list(range(len(rows))) else logits[wanted]

    def _drop_group(self, key: GroupKey, rows: Sequence[HuggingFaceRow]) -> None:
        """Drops a group whose cache may be damaged; its rows are prefilled again when they are next needed."""
        drop_caches([row for row in (*self._groups.pop(key).rows, *rows) if row is not None])

    def _drop_empty_groups(self) -> None:
        """Frees the memory of groups without rows."""
        self._groups = {key: group for key, group in self._groups.items() if any(group.rows)}

    def _is_dropped(self, row: HuggingFaceRow) -> bool:
        return row.cache is None and row.group is None and self.path != "recomputed"

    def _changes_rope(self, row: HuggingFaceRow, token_id: int) -> bool:
        """Whether the model's own loop drops its cache before this token, as Phi-3's does where the factors change."""
        length = row.length
        same = self.rope.stage(length) == self.rope.stage(length + 1)
        if row.rope_length > length or self.path == "recomputed" or same:
            return False
        if row.group is not None:
            leave_group(row)
        return self.forward.drops_cache(row, token_id)

    # --- the prefix cache ----------------------------------------------------------------------------------------

    def _reuse_prefix(self, row: HuggingFaceRow) -> None:
        inputs = row.inputs
        whole = inputs.score or inputs.hidden_states or inputs.embeds is not None
        if whole or not self.prefixes.budget or not self.resumes:
            return
        key = key_of(inputs, self.rope.stage(row.rope_length))
        found = self.prefixes.find(key, row.token_ids, inputs.length - 1)
        if found is None or found[1] < inputs.media_end:
            return
        entry, count = found
        row.cache = cropped(entry.cache, count) if entry.croppable else copy.deepcopy(entry.cache)
        row.length = row.cached = count
        row.left = inputs.length - count

    def _keep_prefix(self, row: HuggingFaceRow) -> None:
        stage = self.rope.stage(row.rope_length)
        if not self.prefixes.budget or not self.resumes or stage != self.rope.stage(row.length):
            return
        cache = row.cache if row.group is None else row.group.extract(row)
        ids = tuple(row.token_ids[: row.length])
        size = size_of(cache)
        self.prefixes.add(CachedPrefix(key_of(row.inputs, stage), ids, cache, is_croppable(cache, len(ids)), size))


def advance(rows: Sequence[HuggingFaceRow], out: Any) -> None:
    """Moves the rows of a decode step to their next position, with their hidden states where these are wanted."""
    for row in rows:
        row.next_position = None if row.next_position is None else row.next_position + 1
    if any(row.inputs.hidden_states for row in rows):
        for row, states in zip(rows, hidden_states(out), strict=True):
            # A copy, or the states of every step of every row would be kept.
            row.hidden = states[-1:].copy() if row.inputs.hidden_states else None
