"""Triton kernels compiled to PTX, and further for a GPU, on a machine without one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tirage.backends.torch import kernels
from tirage.backends.torch import triton as triton_launch
from tirage.backends.torch.device import launches
from tirage.backends.torch.kernels.append import SIZES as APPEND_SIZES
from tirage.backends.torch.kernels.edit import SIZES as EDIT_SIZES
from tirage.backends.torch.kernels.views import SIZES as VIEW_SIZES

_TYPES = (
    dict.fromkeys(("mass_ptr", "sums_ptr", "meta_ptr", "token_ptr", "support_ptr", "state_ptr"), "*i64")
    | dict.fromkeys(("x_ptr", "c_ptr", "logprob_ptr", "log_ptr"), "*fp32")
    | dict.fromkeys(("ends_ptr", "row_ptr", "bins_ptr", "count_ptr", "list_ptr", "length_ptr", "lists_ptr"), "*i32")
    | dict.fromkeys(("plane", "columns", "size", "blocks", "steps", "run", "counts", "marks", "buckets"), "i32")
    | {
        "status_ptr": "*i8",
        "bad_ptr": "*u8",
        "told_ptr": "*fp64",
        "tells": "i32",
        "weighs": "i32",
        "spares": "i32",
        "spared_ptr": "*i32",
        "scale_ptr": "*fp32",
        "kept_ptr": "*u8",
        "law_ptr": "*fp32",
    }
)
_SLOTS = (
    dict.fromkeys(
        (
            "slots_ptr", "tokens_ptr", "least_ptr", "said_ptr", "fault_ptr", "distinct_ptr", "bias_ids_ptr",
            "count_ids_ptr", "prompt_ptr", "ngram_ptr", "window_ptr", "last_power_ptr", "unbroken_ptr",
            "phrase_ids_ptr", "seed_ptr", "slots_meta_ptr", "carry_ptr",
            "view_ptr", "top_n_ptr", "rank_ptr", "top_id_ptr",
        ),
        "*i64",
    )
    | dict.fromkeys(
        (
            "y_ptr", "candidates_ptr", "bias_values_ptr", "powers_ptr", "phrase_bias_ptr", "edited_ptr", "scale_ptr",
            "top_logprob_ptr", "asked_logprob_ptr",
        ),
        "*fp32",
    )
    | dict.fromkeys(
        (
            "given_ptr", "words_ptr", "early_ptr", "edits_ptr", "in_prompt_ptr", "in_output_ptr", "ring_ptr",
            "ahead_ptr", "breaks_ptr", "phrases_ptr", "tail_ptr", "above_ptr", "arrived_ptr", "asked_ptr",
        ),
        "*i32",
    )
    | dict.fromkeys((*EDIT_SIZES, *APPEND_SIZES, *VIEW_SIZES), "i32")
    | dict.fromkeys(("used_ptr", "phrase_own_ptr"), "*u8")
)  # fmt: skip
"""Arguments of the kernels that step rows whose tables lie on the device, where others have other types."""
_OWN = {"append": {"length_ptr": "*i64"}} | {
    name: {"given_ptr": "*fp32", "ends_ptr": "*i64"} for name in ("view_ends", "view_weigh")
}
"""Arguments that have another type in some kernels."""
_SIZES = {"BLOCK": 128, "PADDED": 128, "TILE": 256, "LONG": 512, "CERTAIN": False, "LEVELED": False}


_LAUNCHED = {
    "BLOCK": triton_launch.BLOCK, "PADDED": 256, "TILE": triton_launch.TILE, "LONG": 2 * triton_launch.TILE,
    "CERTAIN": False, "LEVELED": False,
}  # fmt: skip
_FIRST = ("measure", "weigh", "bound", "split", "split_first", "resolve", "general", "log_masses")
_OF_SLOTS = {
    "BLOCK": triton_launch.BLOCK,
    "PADDED": 256,
    "PART": launches.PART,
    "COPIED": launches.COPIED,
    "TILE": launches.IDS,
    "NAMED": launches.NAMED,
    "IS_BFLOAT": False,
    "FULL": 4,
    "EMPTY": 3,
}


def compiled(kernel: Any, *, fusion: bool = False) -> str:
    """The PTX for sm_90 of a kernel with arguments named as those of the torch backend; `fusion` as at its launch."""
    return _compiled(kernel, _SIZES, 90, {"enable_fp_fusion": fusion})


def as_launched(name: str, capability: int) -> str:
    """The PTX of one of our kernels with the sizes and options of a launch over 128,000 logits.

    What follows the name is a switch of the kernel that is on.
    """
    name, *switches = name.split()
    options: dict[str, Any] = triton_launch.EXACT
    if name in ("measure", "measure_slots", "view_ends"):
        options = triton_launch.FIRST
    if name in ("split_first", "resolve", "general", "edit"):
        options = triton_launch.WIDE
    if name == "bound":
        options = triton_launch.BINNED
    sizes = _LAUNCHED if name in _FIRST else _OF_SLOTS
    if name in ("view_ends", "view_weigh"):
        sizes = sizes | {"BLOCK": launches.VIEWED}
    return _compiled(getattr(kernels, name), sizes | dict.fromkeys(switches, True), capability, options)


def assembled(name: str, capability: int, folder: Path) -> str:
    """What the assembler says of a kernel: registers and spills."""
    source = folder / f"{name}.ptx"
    source.write_text(as_launched(name, capability))
    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    tool = assembler / ("ptxas" if capability < 90 else "ptxas-blackwell")
    command = [str(tool), "-v", f"--gpu-name=sm_{capability}{'a' if capability >= 90 else ''}", str(source)]
    done = subprocess.run([*command, "-o", os.devnull], capture_output=True, text=True, check=True)
    return done.stderr


def _compiled(kernel: Any, sizes: dict[str, int], capability: int, options: dict[str, Any]) -> str:
    types = _SLOTS | _TYPES | _OWN.get(kernel.__name__, {})
    program = ASTSource(
        fn=kernel,
        signature={name: types.get(name, "constexpr") for name in kernel.arg_names},
        constexprs={name: value for name, value in sizes.items() if name in kernel.arg_names},
    )
    return triton.compile(program, target=GPUTarget("cuda", capability, 32), options=options).asm["ptx"]
