"""Triton kernels compiled to PTX for sm_90, on a machine without a GPU."""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

_LONGS = {"mass_ptr", "program_ptr", "seed_ptr", "step_ptr", "sample_ptr", "token_ptr", "support_ptr"}
_TYPES = (
    dict.fromkeys(_LONGS, "*i64")
    | dict.fromkeys(("x_ptr", "c_ptr", "list_x", "logprob_ptr"), "*fp32")
    | dict.fromkeys(("high_ptr", "low_ptr", "top_ptr", "count_ptr", "list_id"), "*i32")
    | dict.fromkeys(("size", "blocks", "steps"), "i32")
    | {"status_ptr": "*i8"}
)
_SIZES = {"BLOCK": 128, "PADDED": 128, "TILE": 256}


def compiled(kernel: Any, *, fusion: bool = False) -> str:
    """The PTX of a kernel whose arguments are named as those of the torch backend; `fusion` as at its launch."""
    program = ASTSource(
        fn=kernel,
        signature={name: _TYPES.get(name, "constexpr") for name in kernel.arg_names},
        constexprs={name: value for name, value in _SIZES.items() if name in kernel.arg_names},
    )
    made = triton.compile(program, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": fusion})
    return made.asm["ptx"]
