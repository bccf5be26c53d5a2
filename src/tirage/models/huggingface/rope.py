"""Rotary frequencies that depend on the length of a text: longrope and dynamic NTK.

`transformers` takes the largest position of a forward pass for that length, so a prompt read in pieces, or a row in the
company of a longer one, would get the frequencies of another text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_KINDS = ("longrope", "dynamic")


class Rope:
    """What the frequencies of a model follow from; most models have the same ones at any length.

    Two texts have the same frequencies when `stage` gives the same number for their lengths.
    """

    def __init__(self, module: Any, config: Any) -> None:
        kinds = [(each["rope_type"], each) for each in rope_parameters(config)]
        self._bounds = [int(each["original_max_position_embeddings"]) for kind, each in kinds if kind == "longrope"]
        stretched = any(kind == "dynamic" for kind, _ in kinds)
        self._stretch: int | None = int(config.max_position_embeddings) if stretched else None
        self.moves = bool(self._bounds) or stretched
        self._modules = [m for m in module.modules() if is_rotary(m)] if self.moves else []

    def stage(self, length: int) -> int:
        """0 for short texts, 1 beyond the bound of a longrope, and the length itself beyond that of a dynamic NTK."""
        if self._stretch is not None and length > self._stretch:
            return length
        return sum(length > bound for bound in self._bounds)

    def may_share(self, length: int) -> bool:
        """False where every length has frequencies of its own."""
        return self._stretch is None or length <= self._stretch

    @contextmanager
    def reaching(self, length: int, end: int) -> Iterator[None]:
        """Forward passes inside, over positions below `end`, use the frequencies of a text of `length` tokens."""
        self._reset()
        if self.stage(length) == self.stage(end):
            yield
            return
        hooks = []
        for module in self._modules:
            hooks.append(module.register_forward_pre_hook(one_more(length - 1), with_kwargs=True))
            hooks.append(module.register_forward_hook(one_less))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _reset(self) -> None:
        """Makes modules of dynamic NTK forget the longest text that they have seen."""
        if self._stretch is None:
            return
        for module in self._modules:
            # A short text resets them by transformers' own code.
            device = next(module.buffers()).device
            x, positions = torch.empty((1, 1, 1), device=device), torch.zeros((1, 1), dtype=torch.long, device=device)
            types = module.rope_type if isinstance(module.rope_type, Mapping) else [None]
            for layer_type in types:
                module(x, positions, *([] if layer_type is None else [layer_type]))


def rope_parameters(config: Any) -> list[Mapping[str, Any]]:
    """The rope parameters that a configuration names: one set, or one for each type of layer."""
    given = getattr(config, "rope_parameters", None) or {}
    sets = [given] if "rope_type" in given else given.values()
    return [each for each in sets if isinstance(each, Mapping) and "rope_type" in each]


def is_rotary(module: Any) -> bool:
    """True for a module whose frequencies transformers changes with the largest position that it is given."""
    kind = getattr(module, "rope_type", None)
    kinds = kind.values() if isinstance(kind, Mapping) else [kind]
    return any(each in _KINDS for each in kinds)


def one_more(last: int) -> Any:
    """A hook that puts one position behind those that a module is given."""

    def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if "position_ids" in kwargs:
            return args, {**kwargs, "position_ids": followed(kwargs["position_ids"], last)}
        return (args[0], followed(args[1], last), *args[2:]), kwargs

    return hook


def one_less(_: Any, args: Any, output: Any) -> Any:
    """A hook that takes the angles of the last position off again."""
    return tuple(each[..., :-1, :] for each in output) if isinstance(output, tuple) else output[..., :-1, :]


def followed(positions: Tensor, last: int) -> Tensor:
    return torch.nn.functional.pad(positions, (0, 1), value=last)
