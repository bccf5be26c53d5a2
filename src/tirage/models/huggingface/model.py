"""Any causal language model of `transformers` behind the `StepModel` protocol."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from tirage.errors import ParamsError, nearest
from tirage.models.huggingface.adapters import Adapters
from tirage.models.huggingface.batched_cache import KNOWN_LAYERS, PLAIN_LAYERS, BatchedKVCache, Joined, leave
from tirage.models.huggingface.media import MediaProcessor
from tirage.models.huggingface.packed import pack
from tirage.models.huggingface.preallocated import PreallocatedLayer
from tirage.models.huggingface.prefix import CachedPrefix, PrefixStore, key_of
from tirage.models.huggingface.rope import Rope
from tirage.models.protocol import Inputs

Logits = NDArray[np.float32]
Path = Literal["joined", "alone", "recomputed"]
Lane = tuple[int, int, str | None]
"""Bucket of lengths, stage of the rotary frequencies, and an adapter that cannot be mixed with others."""

# Prompts are read in pieces of this many tokens, cut at multiples of it whoever else is in flight.
CHUNK = 256
# Rows of one arena pay attention over its longest row, so rows far apart in length step apart.
_BUCKETS = (1024, 4096, 16384)
_NO_LIMIT = 1 << 20
_log = logging.getLogger("tirage")


class HuggingFaceRow:
    """One request in flight: what it has read, and its cache while no group holds it."""

    __slots__ = (
        "cache", "cached", "closed", "group", "hidden", "inputs", "left", "length", "positions", "reach", "token_ids",
        "turn",
    )  # fmt: skip

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.token_ids: list[int] = list(inputs.token_ids)
        self.left, self.length, self.cached = inputs.length, 0, 0
        # Positions below this one have the rotary frequencies of a text of so many tokens.
        self.reach = inputs.length
        self.cache: Any = None
        self.group: Any = None
        self.closed = False
        # Position ids [..., 1, T] of the prompt where the model has them, and of the next token.
        self.positions: Tensor | None = None
        self.turn: Tensor | None = None
        self.hidden: NDArray[np.float32] | None = None


class HuggingFaceModel:
    """A `transformers` causal language model; implements `tirage.models.StepModel`.

    Prompts are read by the model's own forward pass, in pieces of `chunk` tokens, or whole where that is None; only
    with `resumes` may a prompt be taken up behind what another row has read. Decode steps of several rows are joined
    in one pass when `path` is "joined"; "alone" steps row by row, and "recomputed", for models whose state does not
    live in a cache, reads the whole text again for each token. `tirage.models.huggingface.probe` chooses all three.
    Rows whose rotary frequencies differ (longrope, dynamic NTK) never share a pass. Logits of a row may differ in
    their last bits with the company of a joined pass.

    `prefix_bytes` bounds the memory in which finished rows serve later prompts that begin alike; 0 is off. With
    `packed` the weights of linear layers are laid out anew, in place, for float32 and bfloat16 on a CPU: a module that
    is used nowhere else runs sooner, on some processors twice as fast, and no longer trains.
    """

    def __init__(
        self,
        module: Any,
        *,
        adapters: Mapping[str, Any] | None = None,
        max_length: int | None = None,
        prefix_bytes: int = 256 << 20,
        quantized: bool = False,
        packed: bool = False,
        media: MediaProcessor | None = None,
    ) -> None:
        self.module, self.quantized, self.media = module, quantized, media
        self.config = module.config.get_text_config(decoder=True)
        self.vocab_size = width_of(module)
        self.max_length = max_length or context_of(self.config)
        self.path: Path = "joined"
        self.chunk: int | None = CHUNK
        self.resumes = True
        self.prefixes = PrefixStore(prefix_bytes)
        self.adapters = Adapters(module, adapters or {})
        self.packed = packed and pack(module, *self.adapters.trees)
        self.rope = Rope(module, self.config)
        self._groups: dict[Lane, BatchedKVCache | Joined] = {}
        known = inspect.signature(module.forward).parameters
        self.cache_name = next((name for name in ("past_key_values", "cache_params") if name in known), None)
        self.takes_positions = "position_ids" in known
        self._keeps_logits = "logits_to_keep" in known
        self.device = module.device

    # --- the protocol --------------------------------------------------------------------------------------------

    def check(self, inputs: Inputs) -> None:
        """Raises ParamsError for an unknown adapter and for embeddings of another width."""
        if inputs.adapter is not None and inputs.adapter not in self.adapters.names:
            known = ", ".join(sorted(self.adapters.names)) or "none"
            hint = nearest(inputs.adapter, self.adapters.names)
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
        """The inputs of a text whose marks stand for `images` and `audio`; ParamsError where they do not fit."""
        if self.media is None:
            name = next(name for name, items in given.items() if len(items))
            raise ParamsError(f"prompt {name} must not be given, this model takes text and token ids only")
        return self.media.read(text, given, special=special)

    @property
    def media_marks(self) -> Mapping[str, str]:
        """What stands for an "image" and an "audio" in a text, of those that the model takes."""
        return {} if self.media is None else self.media.marks

    @property
    def sampling_rate(self) -> int | None:
        """Samples per second of the sounds that the model takes; None when it takes none."""
        return None if self.media is None else self.media.sampling_rate

    @torch.inference_mode()
    def open(self, inputs: Inputs) -> HuggingFaceRow:
        """A row for the inputs, with the longest beginning that an earlier one left."""
        self.check(inputs)
        row = HuggingFaceRow(inputs)
        if self.path != "recomputed":
            row.cache = self.new_cache()
            row.positions = self._positions(row)
            self._reuse(row)
        return row

    @torch.inference_mode()
    def read(self, row: HuggingFaceRow) -> Logits:
        """Logits [k, V] of the next piece of the prompt."""
        start = row.length
        end = row.inputs.length
        # What another row has left is continued token by token where pieces would not do.
        size = self.chunk or (1 if row.cached else None)
        if size is not None and (start or not row.inputs.media):
            end = min(end, (start // size + 1) * size)
        row.left = row.inputs.length - end
        everything = row.inputs.score
        out = self._read_piece(row, start, end, 0 if everything else 1)
        row.length = end
        row.turn = None if row.positions is None else row.positions[..., -1:] + 1
        row.hidden = self._states(out)[0] if row.inputs.hidden_states else None
        if row.left and not everything:
            return np.empty((0, self.vocab_size), np.float32)
        return floats(out.logits[0] if everything else out.logits[0, -1:])

    @torch.inference_mode()
    def decode(self, token_ids: Sequence[int], caches: Sequence[HuggingFaceRow]) -> Logits:
        """Logits [B, V] after one more id per row."""
        for row in caches:
            if self._is_lost(row):
                self._read_again(row)
        for token_id, row in zip(token_ids, caches, strict=True):
            if self.rope.moves and self._starts_over(row, token_id):
                row.reach = row.length + 1
                self._read_again(row)
        before = [row.length for row in caches]
        try:
            logits = self._step(token_ids, caches)
        except BaseException:
            lose([row for row, length in zip(caches, before, strict=True) if row.length != length])
            raise
        for token_id, row in zip(token_ids, caches, strict=True):
            row.token_ids.append(token_id)
        return logits

    @torch.inference_mode()
    def fork(self, cache: HuggingFaceRow) -> HuggingFaceRow:
        """A second row with the same past."""
        if self._is_lost(cache):
            self._read_again(cache)
        twin = copy.copy(cache)
        twin.token_ids, twin.group = list(cache.token_ids), None
        twin.cache = copy.deepcopy(cache.cache) if cache.group is None else cache.group.lone(cache)
        return twin

    @torch.inference_mode()
    def close(self, row: HuggingFaceRow, *, reuse: bool = False) -> None:
        """Frees a row; its cache is kept for reuse when asked."""
        if reuse and row.inputs.embeds is None and self.path != "recomputed" and not self._is_lost(row):
            self._keep(row)
        row.closed, row.cache = True, None
        if row.group is not None:
            leave(row)
        self._drop_empty_groups()

    def forget(self) -> None:
        """Drops what finished rows left."""
        self.prefixes.clear()

    def numerics(self) -> dict[str, Any]:
        """What the last bits of the logits depend on, besides the weights and who shares a pass."""
        return {
            "torch": torch.__version__,
            "device": str(self.device),
            "dtype": "int8" if self.quantized else str(self.module.dtype).removeprefix("torch."),
            "packed": self.packed,
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
        }

    def prefill(self, token_ids: Sequence[int]) -> tuple[Logits, HuggingFaceRow]:
        """Logits [V] after the last id, and the row that continues from there."""
        row = self.open(Inputs(token_ids=tuple(token_ids)))
        logits = self.read(row)
        while row.left:
            logits = self.read(row)
        return logits[-1], row

    def score(self, token_ids: Sequence[int]) -> Logits:
        """Logits [T, V] after each of the T ids."""
        row = self.open(Inputs(token_ids=tuple(token_ids), score=True))
        parts = [self.read(row)]
        while row.left:
            parts.append(self.read(row))
        self.close(row)
        return np.concatenate(parts)

    # --- forward passes ------------------------------------------------------------------------------------------

    def new_cache(self) -> Any:
        """An empty cache of the classes that the model's layers want."""
        cache = DynamicCache(config=self.config)
        if is_plain(cache):
            cache.layers = [PreallocatedLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
        return cache

    def _read_piece(self, row: HuggingFaceRow, start: int, end: int, keep: int) -> Any:
        ids, extra = self._ids(row.token_ids[start:end]), {} if start else self._media(row.inputs.media)
        if row.inputs.embeds is not None:
            extra["inputs_embeds"] = self._embeds(row.inputs.embeds[start:end])
        positions = None if row.positions is None else row.positions[..., start:end]
        mask = torch.ones((1, end), dtype=torch.long, device=self.device)
        first = start == 0 or row.inputs.embeds is not None
        with self.rope.reaching(row.reach, end):
            return self._forward([row], ids, mask, positions, row.cache, keep=keep, first=first, **extra)

    def _step(self, token_ids: Sequence[int], rows: Sequence[HuggingFaceRow]) -> Logits:
        if self.path == "joined":
            return self._step_together(token_ids, rows)
        step = self._recompute if self.path == "recomputed" else self._step_alone
        return np.concatenate([step(row, token_id) for row, token_id in zip(rows, token_ids, strict=True)])

    def _step_alone(self, row: HuggingFaceRow, token_id: int) -> Logits:
        if row.group is not None:
            leave(row)
        mask = torch.ones((1, row.length + 1), dtype=torch.long, device=self.device)
        try:
            with self.rope.reaching(row.length + 1, row.length + 1):
                out = self._forward([row], self._ids([token_id]), mask, row.turn, row.cache, keep=1)
        except BaseException:
            lose([row])
            raise
        row.length += 1
        self._stepped([row], out)
        return floats(out.logits[:, -1])

    def _recompute(self, row: HuggingFaceRow, token_id: int) -> Logits:
        ids = [*row.token_ids, token_id]
        mask = torch.ones((1, len(ids)), dtype=torch.long, device=self.device)
        with self.rope.reaching(len(ids), len(ids)):
            out = self._forward([row], self._ids(ids), mask, None, None, keep=1, first=True)
        row.length = len(ids)
        self._stepped([row], out)
        return floats(out.logits[:, -1])

    def _step_together(self, token_ids: Sequence[int], rows: Sequence[HuggingFaceRow]) -> Logits:
        members: dict[Lane, list[int]] = {}
        logits = np.empty((len(rows), self.vocab_size), np.float32)
        for index, row in enumerate(rows):
            if self.rope.may_share(row.length + 1):
                members.setdefault(self._lane(row), []).append(index)
            else:
                logits[index] = self._step_alone(row, token_ids[index])
        for key, places in members.items():
            part = self._step_group(key, [rows[i] for i in places], [token_ids[i] for i in places])
            if len(places) == len(rows):
                logits = part
            else:
                logits[places] = part
        if len(self._groups) > len(members):
            self._drop_empty_groups()
        return logits

    def _lane(self, row: HuggingFaceRow) -> Lane:
        """What rows must have in common to share the next pass."""
        bucket = sum(row.length >= bound for bound in _BUCKETS)
        return bucket, self.rope.stage(row.length + 1), self.adapters.lane(row.inputs.adapter)

    def _drop_empty_groups(self) -> None:
        """Gives the memory of groups without rows back."""
        self._groups = {key: group for key, group in self._groups.items() if any(group.rows)}

    def _step_group(self, key: Lane, rows: list[HuggingFaceRow], token_ids: list[int]) -> Logits:
        if key not in self._groups:
            self._groups[key] = BatchedKVCache() if is_plain(self.new_cache()) else Joined()
        group = self._groups[key]
        try:
            order = group.hold(rows)
        except BaseException:
            self._give_up(key, rows)
            raise
        place = {id(row): index for index, row in enumerate(rows)}
        ids = self._ids([token_ids[place[id(row)]] for row in order]).reshape(-1, 1)
        mask = right_aligned_mask([row.length for row in order], self.device)
        turns = [row.turn for row in order if row.turn is not None]
        positions = torch.cat(turns, dim=-2) if turns else None
        try:
            longest = max(row.length for row in order) + 1
            with self.rope.reaching(longest, longest):
                out = self._forward(order, ids, mask, positions, group.cache, keep=1)
        except BaseException:
            if not group.undo():
                self._give_up(key, rows)
            raise
        group.stepped()
        self._stepped(order, out)
        logits = floats(out.logits[:, -1])
        slots = {id(row): slot for slot, row in enumerate(order)}
        wanted = [slots[id(row)] for row in rows]
        return logits if wanted == list(range(len(rows))) else logits[wanted]

    def _give_up(self, key: Lane, rows: Sequence[HuggingFaceRow]) -> None:
        """Drops a group that can no longer be trusted; its rows are read again when they are next needed."""
        lose([row for row in (*self._groups.pop(key).rows, *rows) if row is not None])

    def _is_lost(self, row: HuggingFaceRow) -> bool:
        return row.cache is None and row.group is None and self.path != "recomputed"

    def _starts_over(self, row: HuggingFaceRow, token_id: int) -> bool:
        """Whether the model's own loop drops its cache before this token, as Phi-3's does where the factors change."""
        length = row.length
        if row.reach > length or self.path == "recomputed" or self.rope.stage(length) == self.rope.stage(length + 1):
            return False
        if row.group is not None:
            leave(row)
        given = self.module.prepare_inputs_for_generation(
            self._ids([*row.token_ids, token_id]), next_sequence_length=1, past_key_values=row.cache, use_cache=True
        )
        return given.get("past_key_values") is None

    def _read_again(self, row: HuggingFaceRow) -> None:
        """Gives a row what it had read before a step that failed, or reads it with the frequencies of a longer text."""
        if row.group is not None:
            leave(row)
        row.cache, row.length, row.cached, row.left = self.new_cache(), 0, 0, row.inputs.length
        try:
            while row.left:
                self.read(row)
            for start, end in self._pieces_written(row):
                self._read_written(row, row.token_ids[start:end])
        except BaseException:
            lose([row])
            raise

    def _pieces_written(self, row: HuggingFaceRow) -> Iterator[tuple[int, int]]:
        """Slices of `token_ids` behind the prompt's, each of tokens that were written with the same frequencies."""
        start, total = len(row.inputs.token_ids), len(row.token_ids)
        before = row.inputs.length - start
        while start < total:
            end = min(start + (self.chunk or 1), total)
            first, last = before + start + 1, before + end
            if row.reach < last and self.rope.stage(max(row.reach, first)) != self.rope.stage(last):
                end = start + 1
            yield start, end
            start = end

    def _read_written(self, row: HuggingFaceRow, token_ids: Sequence[int]) -> None:
        end = row.length + len(token_ids)
        mask = torch.ones((1, end), dtype=torch.long, device=self.device)
        turns = None if row.turn is None else row.turn + torch.arange(len(token_ids), device=self.device)
        with self.rope.reaching(max(row.reach, end), end):
            self._forward([row], self._ids(token_ids), mask, turns, row.cache, keep=1)
        row.length = end
        row.turn = None if row.turn is None else row.turn + len(token_ids)

    def _stepped(self, rows: Sequence[HuggingFaceRow], out: Any) -> None:
        for row in rows:
            row.turn = None if row.turn is None else row.turn + 1
        if any(row.inputs.hidden_states for row in rows):
            for row, states in zip(rows, self._states(out), strict=True):
                # A copy, or every step of every row would stay.
                row.hidden = states[-1:].copy() if row.inputs.hidden_states else None

    def _forward(
        self,
        rows: Sequence[HuggingFaceRow],
        ids: Tensor,
        mask: Tensor,
        positions: Tensor | None,
        cache: Any,
        *,
        keep: int,
        first: bool = False,
        **extra: Any,
    ) -> Any:
        """The model's own forward pass, with the inputs that its own generation loop would give it."""
        if positions is not None:
            extra["position_ids"] = positions
        if cache is not None and self.cache_name is not None:
            extra[self.cache_name] = cache
        given = self.module.prepare_inputs_for_generation(
            ids, attention_mask=mask, use_cache=cache is not None, is_first_iteration=first, **extra
        )
        if cache is not None and self.cache_name is not None:
            # Phi-3 drops the cache where its factors change; what is to be read again then is decided elsewhere.
            given[self.cache_name] = cache
        if self._keeps_logits:
            given["logits_to_keep"] = keep
        states = any(row.inputs.hidden_states for row in rows)
        given |= {"return_dict": True, "output_hidden_states": states}
        return self.adapters.run([row.inputs.adapter for row in rows], given)

    # --- pieces of input -----------------------------------------------------------------------------------------

    def _ids(self, token_ids: Sequence[int]) -> Tensor:
        return torch.tensor([list(token_ids)], dtype=torch.long, device=self.device)

    def _media(self, media: Mapping[str, Tensor]) -> dict[str, Any]:
        dtype = self.module.dtype
        return {k: v.to(self.device, dtype if v.is_floating_point() else v.dtype) for k, v in media.items()}

    def _embeds(self, embeds: Any) -> Tensor:
        tensor = embeds if isinstance(embeds, Tensor) else torch.from_numpy(np.array(embeds))
        return tensor.to(self.module.dtype).to(self.device)[None]

    def _positions(self, row: HuggingFaceRow) -> Tensor | None:
        """Position ids [..., 1, T] as the model itself makes them; None for a model that takes none."""
        if not self.takes_positions:
            return None
        ids = self._ids(row.token_ids) if row.inputs.embeds is None else self._embeds(row.inputs.embeds)
        mask = torch.ones(ids.shape[:2], dtype=torch.long, device=self.device)
        given = {**self._media(row.inputs.media), "attention_mask": mask}
        return self.module._prepare_position_ids_for_generation(ids, given)

    def _states(self, out: Any) -> NDArray[np.float32]:
        return floats(out.hidden_states[-1])

    # --- reuse of prefixes ---------------------------------------------------------------------------------------

    def _reuse(self, row: HuggingFaceRow) -> None:
        inputs = row.inputs
        whole = inputs.score or inputs.hidden_states or inputs.embeds is not None
        if whole or not self.prefixes.budget or not self.resumes:
            return
        found = self.prefixes.find(key_of(inputs, self.rope.stage(row.reach)), row.token_ids, inputs.length - 1)
        if found is None or found[1] < inputs.media_end:
            return
        entry, count = found
        row.cache = cropped(entry.cache, count) if entry.croppable else copy.deepcopy(entry.cache)
        row.length = row.cached = count
        row.left = inputs.length - count

    def _keep(self, row: HuggingFaceRow) -> None:
        stage = self.rope.stage(row.reach)
        if not self.prefixes.budget or not self.resumes or stage != self.rope.stage(row.length):
            return
        cache = row.cache if row.group is None else row.group.lone(row)
        ids = tuple(row.token_ids[: row.length])
        size = size_of(cache)
        self.prefixes.add(CachedPrefix(key_of(row.inputs, stage), ids, cache, is_croppable(cache, len(ids)), size))


def lose(rows: Sequence[HuggingFaceRow]) -> None:
    """Lets go of caches that a step has spoilt."""
    for row in rows:
        if row.group is not None:
            row.group.rows = [None if held is row else held for held in row.group.rows]
        row.cache = row.group = None


def width_of(module: Any) -> int:
    """Width of the logits, which may exceed the vocabulary that the configuration names."""
    head = module.get_output_embeddings()
    width = getattr(head, "out_features", None)
    return int(head.weight.shape[0] if width is None else width)


def context_of(config: Any) -> int:
    """Largest number of positions that a configuration names; 2^20 where it names none, as recurrent models do."""
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "context_length", "seq_length"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return _NO_LIMIT


def is_plain(cache: Any) -> bool:
    """True when every layer of a cache is of a class that a BatchedKVCache can hold."""
    return all(type(layer) in PLAIN_LAYERS for layer in cache.layers)


def is_known(cache: Any) -> bool:
    """True when every layer of a cache is of a class that can be joined."""
    return bool(cache.layers) and all(type(layer) in KNOWN_LAYERS for layer in cache.layers)


def is_croppable(cache: Any, length: int) -> bool:
    """True when every layer still holds all positions."""
    return all(
        type(layer) in PLAIN_LAYERS and (layer.keys is None or layer.keys.shape[-2] == length) for layer in cache.layers
    )


def cropped(cache: Any, count: int) -> Any:
    """The first `count` positions of a croppable cache; tensors are shared, a row never writes into them."""
    part = copy.copy(cache)
    part.layers = [crop_layer(layer, count) for layer in cache.layers]
    return part


def crop_layer(layer: Any, count: int) -> Any:
    part = copy.copy(layer)
    if not isinstance(layer, DynamicLayer) or layer.keys is None or layer.values is None:
        return part
    first = 0
    if isinstance(part, DynamicSlidingWindowLayer):
        first = max(0, count - part.sliding_window + 1)
        part.cumulative_length = count
    part.keys, part.values = layer.keys[:, :, first:count], layer.values[:, :, first:count]
    return part


def size_of(cache: Any) -> int:
    """Bytes of a cache's tensors."""
    total = 0
    for layer in cache.layers:
        held = [getattr(layer, name, None) for name in ("keys", "values", "indexer_keys")]
        for name in ("conv_states", "recurrent_states"):
            held += getattr(layer, name, {}).values()
        # Views keep all of their storage alive.
        total += sum(t.untyped_storage().nbytes() for t in held if isinstance(t, Tensor))
    return total


def right_aligned_mask(lengths: Sequence[int], device: Any) -> Tensor:
    """[B, longest + 1] of 1 where a row has a position, the new one included, and 0 for its padding."""
    width = max(lengths) + 1
    first = torch.tensor([width - 1 - length for length in lengths], device=device)
    return (torch.arange(width, device=device) >= first[:, None]).long()


def floats(tensor: Tensor) -> NDArray[np.float32]:
    """The tensor as float32 in NumPy, without a copy where it is so already."""
    return tensor.detach().to(torch.float32).cpu().numpy()
