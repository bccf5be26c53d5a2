"""Linear layers in int8 on the CPU: weights per output, activations per row, sums exact in int32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tirage.errors import ModelError
from tirage.models.huggingface.packed import linear_layers, replace_layers


class Int8Linear(nn.Module):
    """A linear layer whose weight is int8 with a scale per output.

    Each row of the input gets its own scale, so a row's result does not depend on the rows beside it.
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
        """The weight [out, in] as float32, for code that multiplies by it itself; a copy, made at each look."""
        return (self.quantized * self.scale).t()

    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b, in the dtype of x."""
        rows = x.reshape(-1, self.in_features).float()
        size = rows.abs().amax(1, keepdim=True).clamp_min(1e-12) / 127
        # The one int8 product of torch that takes CPU tensors; what torch.ao offers is to be removed from it.
        sums = torch._int_mm(  # pyright: ignore[reportPrivateImportUsage]
            (rows / size).round().to(torch.int8), self.quantized
        )
        y = sums.float() * size * self.scale
        y = y if self.bias is None else y + self.bias
        return y.to(x.dtype).reshape(*x.shape[:-1], self.out_features)


def with_int8(module: Any, *trees: Any) -> None:
    """Puts every linear layer in int8, the output head included; the others stay as they are.

    `trees` are other modules over the same layers, as adapters have them; their own layers stay as they are too.
    """
    if module.device.type != "cpu":
        raise ModelError(f"dtype int8 must run on the CPU, got device {module.device}; use bfloat16 there")
    replace_layers(linear_layers((module, *trees)), Int8Linear)
