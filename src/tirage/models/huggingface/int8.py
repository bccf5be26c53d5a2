"""Linear layers in int8 on the CPU: a scale per output and per input row, exact sums in int32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tirage.errors import ModelError
from tirage.models.huggingface.packed_linear import linear_layers, replace_layers


class Int8Linear(nn.Module):
    """A linear layer with an int8 weight: `quantized` int8 [in, out] and `scale` float32 [out].

    Each row of the input has its own scale, so its result does not depend on the other rows.
    """

    quantized: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(1).clamp_min(1e-12) / 127
        self.register_buffer("quantized", (weight / scale[:, None]).round().to(torch.int8).t(), persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self.bias = linear.bias

    @property
    def weight(self) -> Tensor:
        """The weight float32 [out, in], for code that uses it directly; a copy, made at each access."""
        return (self.quantized * self.scale).t()

    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b [..., out] for x [..., in], in the dtype of x."""
        rows = x.reshape(-1, self.in_features).float()
        size = rows.abs().amax(1, keepdim=True).clamp_min(1e-12) / 127
        y = product((rows / size).round().to(torch.int8), self.quantized) * size * self.scale
        y = y if self.bias is None else y + self.bias
        return y.to(x.dtype).reshape(*x.shape[:-1], self.out_features)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x W, float32 [N, out] for int8 x [N, in] and weight [in, out], whose sums are exact before they are rounded."""
    # The only int8 product of torch for CPU tensors, and private; that of torch.ao is deprecated.
    fast = getattr(torch, "_int_mm", None)
    return fast(x, weight).float() if fast is not None else (x.double() @ weight.double()).float()


def with_int8(module: Any, *trees: Any) -> None:
    """Replaces every linear layer by an Int8Linear, the output head included.

    `trees` are other modules with the same layers, as adapters have them; the layers of the adapters themselves are not
    replaced. Raises ModelError on a device other than the CPU.
    """
    if module.device.type != "cpu":
        raise ModelError(f"dtype int8 must run on the CPU, got device {module.device}; use bfloat16 there")
    replace_layers(linear_layers((module, *trees)), Int8Linear)
