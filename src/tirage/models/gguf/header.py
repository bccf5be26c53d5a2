"""The header of a GGUF file, read as untrusted input before libllama sees it.

libllama ends the process where an assertion fails, so what its assertions hold is checked here: the types of the
metadata that it reads, token texts that are there twice, ids beyond the vocabulary, experts. So are the sizes that it
declares, before memory is taken for them. Format: ggml's `docs/gguf.md`.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tirage.errors import ModelError
from tirage.models.gguf.declared_size import TensorInfo, check_layers, check_tensors

VERSIONS = (2, 3)
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: Mapping[int, str] = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|b1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_NAME_BYTES = 65536
_HEADER_BYTES = 1 << 28
"""The longest header, several times those of the largest vocabularies; in memory texts take several times as much."""
_NO_TOKEN = 2**32 - 1
_TENSOR_BYTES = 4 + 8 + 4 + 8
"""The fewest bytes that describe a tensor besides its name: number of dimensions, one of them, type, offset."""

_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "general.architecture": lambda value: isinstance(value, str),
    "tokenizer.ggml.model": lambda value: isinstance(value, str),
    "tokenizer.ggml.pre": lambda value: isinstance(value, str),
    "tokenizer.chat_template": lambda value: isinstance(value, str),
    "tokenizer.ggml.tokens": lambda value: isinstance(value, list),
    "tokenizer.ggml.merges": lambda value: isinstance(value, list),
    "tokenizer.ggml.scores": lambda value: isinstance(value, np.ndarray) and value.dtype == np.float32,
    "tokenizer.ggml.token_type": lambda value: isinstance(value, np.ndarray) and value.dtype == np.int32,
}
"""What the values of some keys must be."""
_POSITIVE = ("block_count", "context_length", "embedding_length")
"""Keys of an architecture whose values must be positive."""
_MOST = 2**31 - 1
"""The largest of them; libllama tells a context length as a signed integer of 32 bits."""
_MOST_EXPERTS = 512
"""`LLAMA_MAX_EXPERTS`, above which libllama ends the process."""


@dataclass(frozen=True, slots=True)
class Header:
    """The metadata of a GGUF file by key: numbers, texts, lists of texts, and arrays [N] of numbers.

    `tensor_types` are ggml's numbers of the types that its tensors have; 0 is float32.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensor_types: frozenset[int]

    @property
    def architecture(self) -> str:
        """The name of the architecture, such as "llama"."""
        return self.metadata["general.architecture"]

    def of_architecture(self, name: str) -> Any:
        """The value of a key of the architecture, such as "context_length"; None if it is not there."""
        return self.metadata.get(f"{self.architecture}.{name}")


def read_header(path: Path) -> Header:
    """The header of a GGUF file.

    Raises ModelError naming the file for one that cannot be read, is no GGUF file, ends too early, or has metadata
    that libllama cannot take.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(path, data)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"{path} cannot be read as a GGUF file: {reason}") from error


def _read(path: Path, data: mmap.mmap) -> Header:
    if data[:4] != b"GGUF":
        raise ModelError(f"{path} must be a GGUF file, which begins with b'GGUF', got {bytes(data[:4])!r}")
    reader = HeaderReader(path, data)
    version = reader.number("<u4")
    if version not in VERSIONS:
        known = " or ".join(map(str, VERSIONS))
        raise ModelError(f"{path} must be of GGUF version {known}, little-endian, got {version}; convert it again")
    tensors, pairs = reader.number("<u8"), reader.number("<u8")
    metadata = dict(reader.pair() for _ in reader.counted(pairs, size=13))
    described = [reader.tensor() for _ in reader.counted(tensors, size=_TENSOR_BYTES)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise ModelError(f"{path}: general.alignment must be a power of 2, got {alignment!r:.40}")
    check_tensors(path, described, start=-(-reader.at // alignment) * alignment, end=len(data))
    header = Header(path, metadata, frozenset(tensor.kind for tensor in described))
    _check(header)
    check_layers(path, header.of_architecture("block_count"), len(described))
    return header


class HeaderReader:
    """Reads values one after the other; ModelError where the file ends too early."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self.at = path, data, 4

    def bytes(self, count: int) -> bytes:
        """The next bytes."""
        if count > len(self._data) - self.at:
            raise ModelError(
                f"{self._path} is truncated: its header needs {self.at + count} bytes, got {len(self._data)}; "
                "download or copy it again"
            )
        self._check_length(self.at + count)
        self.at += count
        return self._data[self.at - count : self.at]

    def counted(self, count: int, *, size: int) -> Iterator[int]:
        """0 to `count` - 1, for things of at least `size` bytes each; ModelError if there is no room for them."""
        if count > (len(self._data) - self.at) // size:
            raise ModelError(
                f"{self._path} is truncated or damaged: {count} entries of its header cannot be in "
                f"{len(self._data)} bytes; download or copy it again"
            )
        self._check_length(self.at + count * size)
        return iter(range(count))

    def _check_length(self, end: int) -> None:
        if end > _HEADER_BYTES:
            raise ModelError(f"{self._path} must have a header of at most {_HEADER_BYTES} bytes, got at least {end}")

    def number(self, kind: str) -> Any:
        """The next number of a NumPy type."""
        return np.frombuffer(self.bytes(np.dtype(kind).itemsize), kind)[0].item()

    def text(self) -> str:
        """The next text; bytes that are not UTF-8 become surrogates."""
        (length,) = struct.unpack("<Q", self.bytes(8))
        return self.bytes(length).decode("utf-8", "surrogateescape")

    def pair(self) -> tuple[str, Any]:
        """The next key and its value."""
        key = self.text()
        if not 0 < len(key) < _NAME_BYTES:
            raise ModelError(f"{self._path}: metadata keys must have 1 to {_NAME_BYTES - 1} characters, got {len(key)}")
        return key, self.value(key, self.number("<u4"))

    def value(self, key: str, kind: int) -> Any:
        """The next value of a type of GGUF."""
        if kind == _STRING:
            return self.text()
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind != _ARRAY:
            raise ModelError(f"{self._path}: metadata {key!r:.80} must be of a known type, got type {kind}")
        inner, count = self.number("<u4"), self.number("<u8")
        if inner == _STRING:
            return [self.text() for _ in self.counted(count, size=8)]
        if inner not in _SCALARS:
            raise ModelError(f"{self._path}: metadata {key!r:.80} must be an array of a known type, got type {inner}")
        dtype = np.dtype(_SCALARS[inner])
        return np.frombuffer(self.bytes(count * dtype.itemsize), dtype)

    def tensor(self) -> TensorInfo:
        """The description of the next tensor."""
        name, dimensions = self.text(), self.number("<u4")
        if dimensions > 4:
            raise ModelError(f"{self._path}: tensor {name!r:.80} must have at most 4 dimensions, got {dimensions}")
        shape = tuple(self.number("<u8") for _ in range(dimensions))
        return TensorInfo(name, shape, self.number("<u4"), self.number("<u8"))


def _check(header: Header) -> None:
    path, metadata = header.path, header.metadata
    if "general.architecture" not in metadata:
        raise ModelError(f"{path} must name its architecture in general.architecture, got none; convert it again")
    for key, holds in _TYPES.items():
        if key in metadata and not holds(metadata[key]):
            raise ModelError(f"{path}: {key} is of a wrong type, got {type(metadata[key]).__name__}; convert it again")
    for name in _POSITIVE:
        value = header.of_architecture(name)
        if not isinstance(value, int) or not 1 <= value <= _MOST:
            raise ModelError(
                f"{path}: {header.architecture}.{name} must be an integer in [1, {_MOST}], got {value!r:.40}"
            )
    _check_experts(header)
    _check_tokens(header)


def _check_experts(header: Header) -> None:
    count, used = (header.of_architecture(f"expert_{name}") or 0 for name in ("count", "used_count"))
    if not all(isinstance(value, int) for value in (count, used)) or not (
        0 <= used <= count <= _MOST_EXPERTS and (used > 0) == (count > 0)
    ):
        raise ModelError(
            f"{header.path}: {header.architecture}.expert_count must be at most {_MOST_EXPERTS}, with 1 to as many of "
            f"them used, got {count!r:.40} with expert_used_count {used!r:.40}"
        )


def _check_tokens(header: Header) -> None:
    path, metadata = header.path, header.metadata
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelError(f"{path} must hold its vocabulary in tokenizer.ggml.tokens, got none; convert it again")
    token, count = Counter(filter(None, tokens)).most_common(1)[0] if any(tokens) else ("", 1)
    if count > 1:
        raise ModelError(f"{path}: tokenizer.ggml.tokens must hold every token once, got {token!r:.60} {count} times")
    for key in ("tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
        if key in metadata and len(metadata[key]) != len(tokens):
            raise ModelError(f"{path}: {key} must have {len(tokens)} entries as the tokens, got {len(metadata[key])}")
    for key in ("tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"):
        value = metadata.get(key, _NO_TOKEN)
        if not isinstance(value, int) or not (0 <= value < len(tokens) or value == _NO_TOKEN):
            raise ModelError(f"{path}: {key} must be a token id in [0, {len(tokens)}), got {value!r:.40}")
