"""Linear layers whose weights lie in memory as oneDNN wants to read them: the same products, sooner, on a CPU.

PyTorch multiplies float32 by MKL, which on processors of other makers leaves half of their vector units idle, and
lays out every bfloat16 weight anew at each call.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

# Differences that another order of summing may make, relative to the largest result.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
_log = logging.getLogger("tirage")


class PackedLinear(nn.Module):
    """A linear layer that keeps its weight in oneDNN's layout and no other copy.

    A weight that another module uses too, as a tied embedding does, is multiplied as it lies.
    """

    def __init__(self, linear: nn.Linear, *, shared: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        # Neither a parameter nor a buffer: what walks over those does not know the layout.
        self._held = weight if shared else torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self.bias = linear.bias

    @property
    def weight(self) -> Tensor:
        """The weight [out, in] as it was; a copy, made at each look."""
        return self._held.to_dense() if self._held.is_mkldnn else self._held

    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b, in the dtype of x."""
        return torch.ops.mkldnn._linear_pointwise(x, self._held, self.bias, "none", [], "")


def pack(module: Any, *trees: Any) -> bool:
    """Whether the module's linear layers could be packed, which changes it in place; the log says why not.

    It runs but no longer trains. Layers that adapters bring along stay as they are. `trees` are other modules over the
    same layers, as adapters have them.
    """
    found = linear_layers((module, *trees))
    owners = {id(owner): owner for root in (module, *trees) for owner in root.modules()}.values()
    uses = Counter(id(parameter) for owner in owners for parameter in owner.parameters(recurse=False))
    reason = unpackable(found[0][2]) if found else "it has no linear layers"
    if reason:
        _log.info("%s keeps its linear layers as they are: %s", type(module).__name__, reason)
        return False
    replace_layers(found, lambda linear: PackedLinear(linear, shared=uses[id(linear.weight)] > 1))
    return True


def linear_layers(roots: Sequence[Any]) -> list[tuple[Any, str, nn.Linear]]:
    """The linear layers of modules, each with its owner and its name there; those of adapters are left out."""
    return [
        (owner, name, child)
        for root in roots
        for owner in root.modules()
        if not isinstance(owner, nn.ModuleDict)
        for name, child in owner.named_children()
        if type(child) is nn.Linear
    ]


def replace_layers(found: Sequence[tuple[Any, str, nn.Linear]], make: Callable[[nn.Linear], nn.Module]) -> None:
    """Puts another layer in the place of each, one for all the places that a layer has."""
    made: dict[int, nn.Module] = {}
    for owner, name, linear in found:
        if id(linear) not in made:
            made[id(linear)] = make(linear)
        setattr(owner, name, made[id(linear)])


@torch.inference_mode()
def unpackable(linear: nn.Linear) -> str:
    """Why a layer cannot be packed here, or an empty string."""
    weight = linear.weight
    if weight.device.type != "cpu" or weight.dtype not in _TOLERANCE:
        return f"{weight.dtype} on {weight.device} is multiplied well enough"
    if not torch.backends.mkldnn.is_available():
        return "this PyTorch has no oneDNN"
    x = torch.linspace(-1, 1, 3 * linear.in_features, dtype=weight.dtype).reshape(3, -1)
    try:
        got = PackedLinear(linear, shared=False)(x)
    except (AttributeError, RuntimeError) as error:
        return f"oneDNN refuses them: {str(error).splitlines()[0]:.100}"
    want = linear(x)
    error = float((got - want).abs().max() / want.abs().max().clamp_min(1e-30))
    return "" if error <= _TOLERANCE[weight.dtype] else f"results differ by {error:.1e} of the largest"
