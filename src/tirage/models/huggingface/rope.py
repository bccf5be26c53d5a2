"""Rotary frequencies that depend on the length of the text: longrope and dynamic NTK.

`transformers` takes the largest position of a forward pass as the length, so a prompt prefilled in chunks, or a row in
a batch with a longer one, would get the frequencies of another text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_KINDS = ("longrope", "dynamic")


class Rope:
    """How the rotary frequencies of a model depend on the length of a text; with most models they do not.

    Two lengths have the same frequencies if their `stage` is the same. `varies` is False if all lengths have.
    """

    def __init__(self, module: Any, config: Any) -> None:
        kinds = [(each["rope_type"], each) for each in rope_parameters(config)]
        self._longrope_bounds = [
            int(each["original_max_position_embeddings"]) for kind, each in kinds if kind == "longrope"
        ]
        has_ntk = any(kind == "dynamic" for kind, _ in kinds)
        self._ntk_bound: int | None = int(config.max_position_embeddings) if has_ntk else None
        self.varies = bool(self._longrope_bounds) or has_ntk
        self._modules = [m for m in module.modules() if is_rotary(m)] if self.varies else []

    def stage(self, length: int) -> int:
        """0 for short texts, 1 beyond the bound of longrope, and the length itself beyond that of dynamic NTK."""
        if self._ntk_bound is not None and length > self._ntk_bound:
            return length
        return sum(length > bound for bound in self._longrope_bounds)

    def may_share(self, length: int) -> bool:
        """Whether a row of that length may share a pass: not if every length has frequencies of its own."""
        return self._ntk_bound is None or length <= self._ntk_bound

    @contextmanager
    def for_length(self, length: int, end: int) -> Iterator[None]:
        """Makes forward passes over positions below `end` use the frequencies of a text of `length` tokens."""
        self._reset()
        if self.stage(length) == self.stage(end):
            yield
            return
        hooks = []
        for module in self._modules:
            hooks.append(module.register_forward_pre_hook(append_position(length - 1), with_kwargs=True))
            hooks.append(module.register_forward_hook(drop_position))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _reset(self) -> None:
        """Resets modules of dynamic NTK, which remember the longest text that they have seen."""
        if self._ntk_bound is None:
            return
        for module in self._modules:
            # transformers' own code resets them when it sees a short text.
            device = next(module.buffers()).device
            x, positions = torch.empty((1, 1, 1), device=device), torch.zeros((1, 1), dtype=torch.long, device=device)
            types = module.rope_type if isinstance(module.rope_type, Mapping) else [None]
            for layer_type in types:
                module(x, positions, *([] if layer_type is None else [layer_type]))


def rope_parameters(config: Any) -> list[Mapping[str, Any]]:
    """The rope parameters in a configuration: one set, or one for each type of layer."""
    given = getattr(config, "rope_parameters", None) or {}
    sets = [given] if "rope_type" in given else given.values()
    return [each for each in sets if isinstance(each, Mapping) and "rope_type" in each]


def is_rotary(module: Any) -> bool:
    """Whether a module is one whose frequencies transformers changes with the largest position."""
    kind = getattr(module, "rope_type", None)
    kinds = kind.values() if isinstance(kind, Mapping) else [kind]
    return any(each in _KINDS for each in kinds)


def append_position(last: int) -> Any:
    """A hook that appends one position to those that a module is given."""

    def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if "position_ids" in kwargs:
            return args, {**kwargs, "position_ids": with_position(kwargs["position_ids"], last)}
        return (args[0], with_position(args[1], last), *args[2:]), kwargs

    return hook


def drop_position(_: Any, args: Any, output: Any) -> Any:
    """A hook that removes the angles of the last position, for outputs [..., T, head_dim]."""
    return tuple(each[..., :-1, :] for each in output) if isinstance(output, tuple) else output[..., :-1, :]


def with_position(positions: Tensor, last: int) -> Tensor:
    """The positions [..., T] with one more appended, [..., T + 1]."""
    return torch.nn.functional.pad(positions, (0, 1), value=last)
