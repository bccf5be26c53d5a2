"""The weights in the safetensors files of a folder, as float32 arrays.

Besides F32, F16 and BF16 a compact int8 form is read: an I8 tensor `NAME` and an F32 tensor `NAME_scale` with a factor
per row stand for `NAME * NAME_scale[:, None]`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ModelError
from tirage.fields.rules import shown
from tirage.models.json_file import read_json_object

Tensor = NDArray[np.float32]

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SCALE = "_scale"
_NUMPY_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "i1"}


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the folder by name, in its stored shape [...], float32 and C-contiguous.

    Raises ModelError naming a file that is missing, damaged or not safetensors: other formats can run code when they
    are opened.
    """
    raw: dict[str, NDArray[Any]] = {}
    for path in weight_files(folder):
        for name, array in read_file(path).items():
            if name in raw:
                raise ModelError(f"{path}: tensor {name!r} is in another file of the folder too")
            raw[name] = array
    return dequantise(raw, folder)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, sorted by name; ModelError if there are none or the index is damaged."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    index = folder / INDEX
    if not index.is_file():
        raise ModelError(f"{folder / SINGLE} is missing; tirage reads safetensors weights only")
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index}: weight_map must be a non-empty object")
    return [folder / name for name in sorted({shard_name(index, each) for each in weight_map.values()})]


def is_compact(folder: Path) -> bool:
    """Whether tensors of the folder are in the compact int8 form, which only this module reads.

    Raises ModelError for a damaged file.
    """
    for path in weight_files(folder):
        names = stored_shapes(path).keys()
        if any(name.removesuffix(SCALE) in names for name in names if name.endswith(SCALE)):
            return True
    return False


def stored_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes [...] of a safetensors file's tensors by name, from its header; ModelError for a damaged file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} is not a complete safetensors file: {error}") from error


def shard_name(index: Path, name: Any) -> str:
    """The name of a shard; ModelError unless it is a plain file name, because an index must not point elsewhere."""
    is_text = isinstance(name, str) and name not in {"", ".", ".."}
    if not is_text or name != Path(name).name or "\\" in name or "\0" in name:
        raise ModelError(f"{index}: weight_map must name files of the same folder, got {shown(name)}")
    return name


def read_file(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of one file by name, in their stored shapes [...]: float32, or int8 in the compact form.

    Raises ModelError for a file that cannot be read or is damaged.
    """
    from safetensors import SafetensorError, deserialize

    try:
        entries = deserialize(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise ModelError(f"{path} is not a complete safetensors file: {error}") from error
    return {name: to_array(path, name, entry) for name, entry in entries}


def to_array(path: Path, name: str, entry: dict[str, Any]) -> NDArray[Any]:
    """A stored tensor in its shape [...], as float32 (exactly, because all formats are narrower) or int8.

    Raises ModelError for another dtype, and for data that do not fit the shape.
    """
    dtype, shape = str(entry["dtype"]), tuple(entry["shape"])
    if dtype not in _NUMPY_DTYPES:
        known = ", ".join(_NUMPY_DTYPES)
        raise ModelError(f"{path}: tensor {name!r} must be one of {known}, got {dtype}")
    array = np.frombuffer(entry["data"], dtype=_NUMPY_DTYPES[dtype])
    if array.size != math.prod(shape):
        raise ModelError(f"{path}: tensor {name!r} holds {array.size} values for shape {list(shape)}")
    if dtype == "BF16":
        # bfloat16 is the upper half of a float32.
        array = (array.astype(np.uint32) << 16).view(np.float32)
    elif dtype != "I8":
        array = array.astype(np.float32, copy=False)
    return array.reshape(shape)


def dequantise(raw: dict[str, NDArray[Any]], folder: Path) -> dict[str, Tensor]:
    """The tensors [...] as float32 in the same shapes; int8 ones are multiplied by their row factors.

    Raises ModelError for an int8 tensor without matching factors.
    """
    quantised = {name for name, array in raw.items() if array.dtype == np.int8}
    scales = {name + SCALE for name in quantised}
    weights: dict[str, Tensor] = {}
    for name, array in raw.items():
        if name in quantised:
            weights[name] = multiply_out(name, array, raw.get(name + SCALE), folder)
        elif name not in scales:
            weights[name] = np.ascontiguousarray(array, dtype=np.float32)
    return weights


def multiply_out(name: str, array: NDArray[Any], scale: NDArray[Any] | None, folder: Path) -> Tensor:
    """int8 [rows, columns] times factors float32 [rows], as float32; ModelError if they do not match."""
    if scale is None:
        raise ModelError(f"{folder}: int8 tensor {name!r} needs a tensor {name + SCALE!r} with one factor per row")
    if array.ndim != 2 or scale.shape != array.shape[:1] or scale.dtype != np.float32:
        raise ModelError(
            f"{folder}: {name + SCALE!r} must be float32 [{array.shape[0] if array.ndim else 0}] "
            f"for int8 rows {list(array.shape)}, got {scale.dtype} {list(scale.shape)}"
        )
    return array.astype(np.float32) * scale[:, None]
