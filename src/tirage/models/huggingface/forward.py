"""The forward pass of a `transformers` model, called as its own generation loop calls it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from tirage.models.huggingface.adapters import Adapters
from tirage.models.huggingface.cache_layers import is_plain
from tirage.models.huggingface.preallocated_layer import PreallocatedLayer
from tirage.models.huggingface.row import HuggingFaceRow

_NO_LIMIT = 1 << 20


class ForwardPass:
    """Calls a `transformers` causal language model with its adapters.

    `cache_name` is the parameter by which the model takes a cache, None if it takes none; `takes_positions` says
    whether it takes position ids.
    """

    def __init__(self, module: Any, adapters: Adapters) -> None:
        self.module, self.adapters, self.device = module, adapters, module.device
        self.config = module.config.get_text_config(decoder=True)
        parameters = inspect.signature(module.forward).parameters
        self.cache_name = next((name for name in ("past_key_values", "cache_params") if name in parameters), None)
        self.takes_positions = "position_ids" in parameters
        self._keeps_logits = "logits_to_keep" in parameters

    def new_cache(self) -> Any:
        """An empty cache with the layer classes that the model wants."""
        cache = DynamicCache(config=self.config)
        if is_plain(cache):
            cache.layers = [PreallocatedLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
        return cache

    def run(
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
        """The model's output for B rows, with the inputs that its own generation loop would give it.

        `ids` int64 [B, T] are the new tokens, `mask` int64 [B, length] covers cached and new positions, `positions`
        int64 [..., B, T] or None. `keep` is the number of last logits wanted, 0 for all.
        """
        if positions is not None:
            extra["position_ids"] = positions
        if cache is not None and self.cache_name is not None:
            extra[self.cache_name] = cache
        given = self.module.prepare_inputs_for_generation(
            ids, attention_mask=mask, use_cache=cache is not None, is_first_iteration=first, **extra
        )
        if cache is not None and self.cache_name is not None:
            # Phi-3 drops the cache where its factors change; the caller has already prefilled the row again then.
            given[self.cache_name] = cache
        if self._keeps_logits:
            given["logits_to_keep"] = keep
        states = any(row.inputs.hidden_states for row in rows)
        given |= {"return_dict": True, "output_hidden_states": states}
        return self.adapters.run([row.inputs.adapter for row in rows], given)

    def drops_cache(self, row: HuggingFaceRow, token_id: int) -> bool:
        """Whether the model's own generation loop would drop the cache before this token."""
        given = self.module.prepare_inputs_for_generation(
            self.ids([*row.token_ids, token_id]), next_sequence_length=1, past_key_values=row.cache, use_cache=True
        )
        return given.get("past_key_values") is None

    def ids(self, token_ids: Sequence[int]) -> Tensor:
        """The token ids as int64 [1, T] on the device."""
        return torch.tensor([list(token_ids)], dtype=torch.long, device=self.device)

    def ones(self, length: int) -> Tensor:
        """The attention mask of one row without padding, int64 [1, length]."""
        return torch.ones((1, length), dtype=torch.long, device=self.device)

    def media(self, media: Mapping[str, Tensor]) -> dict[str, Any]:
        """The tensors [...] of images and audio, of any shape, on the device; floats in the model's dtype."""
        dtype = self.module.dtype
        return {k: v.to(self.device, dtype if v.is_floating_point() else v.dtype) for k, v in media.items()}

    def embeds(self, embeds: Any) -> Tensor:
        """Prompt embeddings [T, hidden] as [1, T, hidden] on the device, in the model's dtype."""
        tensor = embeds if isinstance(embeds, Tensor) else torch.from_numpy(np.array(embeds))
        return tensor.to(self.module.dtype).to(self.device)[None]

    def positions(self, row: HuggingFaceRow) -> Tensor | None:
        """The position ids int64 [..., 1, T] of a prompt as the model makes them; None if it takes none."""
        if not self.takes_positions:
            return None
        ids = self.ids(row.token_ids) if row.inputs.embeds is None else self.embeds(row.inputs.embeds)
        mask = torch.ones(ids.shape[:2], dtype=torch.long, device=self.device)
        given = {**self.media(row.inputs.media), "attention_mask": mask}
        return self.module._prepare_position_ids_for_generation(ids, given)


def width_of(module: Any) -> int:
    """The width V of the logits, which may exceed the vocabulary size in the configuration."""
    head = module.get_output_embeddings()
    width = getattr(head, "out_features", None)
    return int(head.weight.shape[0] if width is None else width)


def context_of(config: Any) -> int:
    """The context length in a configuration; 2^20 if it names none, as with recurrent models."""
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "context_length", "seq_length"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return _NO_LIMIT


def right_aligned_mask(lengths: Sequence[int], device: Any) -> Tensor:
    """The attention mask int64 [B, longest + 1]: 1 for the positions of a row and the new one, 0 for its padding."""
    width = max(lengths) + 1
    first = torch.tensor([width - 1 - length for length in lengths], device=device)
    return (torch.arange(width, device=device) >= first[:, None]).long()


def hidden_states(out: Any) -> NDArray[np.float32]:
    """The states of the last layer in a model's output, float32 [B, T, hidden]."""
    return floats(out.hidden_states[-1])


def floats(tensor: Tensor) -> NDArray[np.float32]:
    """A tensor [...] of any shape as float32 in NumPy, without a copy if it is so already."""
    if tensor.device.type != "cpu" or tensor.dtype == torch.float32:
        return tensor.detach().to(torch.float32).cpu().numpy()
    # NumPy asks for huge pages; with small ones the first touch costs more than the conversion.
    array = np.empty(tensor.shape, np.float32)
    torch.from_numpy(array).copy_(tensor)
    return array
