"""Linear layers with weights in oneDNN's memory layout, which are faster on a CPU.

PyTorch multiplies float32 with MKL, which leaves half of the vector units idle on processors of other makers, and
rearranges every bfloat16 weight at each call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

# Differences that another order of summation may cause, relative to the largest result.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
# Private ones, which a release of PyTorch may lack or change; a layer is tried before it is packed.
_OPERATIONS = ("_reorder_linear_weight", "_linear_pointwise")
_log = logging.getLogger("tirage")


class PackedLinear(nn.Module):
    """A linear layer that keeps its weight only in oneDNN's layout.

    A weight that it shares with another module, such as a tied embedding, is in memory twice.
    """

    def __init__(self, linear: nn.Linear, packed: Tensor | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        # Neither a parameter nor a buffer, because code that iterates over those does not know the layout.
        self._packed = reordered(linear) if packed is None else packed
        self.bias = linear.bias

    @property
    def weight(self) -> Tensor:
        """The weight [out, in] in the ordinary layout; a copy, made at each access."""
        return self._packed.to_dense() if self._packed.is_mkldnn else self._packed

    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b [..., out] for x [..., in], in the dtype of x."""
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")


def reordered(linear: nn.Linear) -> Tensor:
    """The weight [out, in] of a layer in oneDNN's layout."""
    return torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)


def pack(module: Any, *trees: Any) -> bool:
    """Packs the linear layers of a module in place; gives whether that was possible, and the log says why not.

    A packed module can no longer be trained. `trees` are other modules with the same layers, as adapters have them; the
    layers of the adapters themselves are not packed.
    """
    found = linear_layers((module, *trees))
    reason = unpackable(found[0][2]) if found else "it has no linear layers"
    if reason:
        _log.info("%s keeps its linear layers as they are: %s", type(module).__name__, reason)
        return False
    # Layers of several trees may share a weight, which is packed once.
    layers = {id(linear.weight): linear for _, _, linear in found}
    packed = {key: reordered(linear) for key, linear in layers.items()}
    replace_layers(found, lambda linear: PackedLinear(linear, packed[id(linear.weight)]))
    return True


def linear_layers(roots: Sequence[Any]) -> list[tuple[Any, str, nn.Linear]]:
    """The linear layers of modules, each with its owner and its name in it, without those of adapters."""
    return [
        (owner, name, child)
        for root in roots
        for owner in root.modules()
        if not isinstance(owner, nn.ModuleDict)
        for name, child in owner.named_children()
        if type(child) is nn.Linear
    ]


def replace_layers(found: Sequence[tuple[Any, str, nn.Linear]], make: Callable[[nn.Linear], nn.Module]) -> None:
    """Replaces each layer by the one that `make` gives for it, wherever the layer occurs."""
    made: dict[int, nn.Module] = {}
    for owner, name, linear in found:
        if id(linear) not in made:
            made[id(linear)] = make(linear)
        setattr(owner, name, made[id(linear)])


@torch.inference_mode()
def unpackable(linear: nn.Linear) -> str:
    """Why a layer cannot be packed here; empty if it can."""
    weight = linear.weight
    if weight.device.type != "cpu" or weight.dtype not in _TOLERANCE:
        return f"{weight.dtype} on {weight.device} is multiplied well enough"
    if not torch.backends.mkldnn.is_available() or not all(hasattr(torch.ops.mkldnn, name) for name in _OPERATIONS):
        return "this PyTorch has no oneDNN, or not these operations of it"
    x = torch.linspace(-1, 1, 3 * linear.in_features, dtype=weight.dtype).reshape(3, -1)
    try:
        got = PackedLinear(linear)(x)
    except (AttributeError, RuntimeError, TypeError) as error:
        return f"oneDNN refuses them: {str(error).splitlines()[0]:.100}"
    want = linear(x)
    error = float((got - want).abs().max() / want.abs().max().clamp_min(1e-30))
    return "" if error <= _TOLERANCE[weight.dtype] else f"results differ by {error:.1e} of the largest"
