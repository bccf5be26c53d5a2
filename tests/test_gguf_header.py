"""GGUF files that are refused before llama.cpp sees them; llama-cpp-python is not needed."""

from __future__ import annotations

import os
import random
import struct
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import METADATA, TOKENS, text, value_of, write_gguf

import tirage
from tirage import ModelError, ParamsError
from tirage.models import find_model, is_gguf
from tirage.models.gguf.header import read_header
from tirage.models.gguf.open import gpu_layers, open_gguf


def test_a_header_is_read(tmp_path: Path) -> None:
    header = read_header(write_gguf(tmp_path / "a.gguf", {"general.flag": True, "general.share": 0.5}))
    assert header.architecture == "llama"
    assert header.of_architecture("context_length") == 32
    assert header.of_architecture("nothing") is None
    assert header.tensor_types == {0}
    assert header.metadata["tokenizer.ggml.tokens"] == TOKENS
    assert header.metadata["tokenizer.ggml.token_type"].dtype == np.int32
    assert header.metadata["general.flag"] is True
    assert header.metadata["general.share"] == 0.5


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cannot be read as a GGUF file: cannot mmap an empty file"),
        (b"PK\x03\x04" + bytes(60), "must be a GGUF file, which begins with b'GGUF', got b'PK"),
        (b"GGUF", "is truncated"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "must be of GGUF version 2 or 3, little-endian, got 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "must be of GGUF version 2 or 3, little-endian, got 50331648"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "1152921504606846976 entries of its header cannot be in 24 bytes"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "must name its architecture"),
    ],
)
def test_what_is_no_gguf_file_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        tirage.LLM(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"general.alignment": 3}, "general.alignment must be a power of 2, got 3"),
        ({"general.architecture": 7}, "general.architecture is of a wrong type, got int"),
        ({"llama.block_count": 0}, "llama.block_count must be an integer in [1, 2147483647], got 0"),
        ({"llama.context_length": 2.0}, "llama.context_length must be an integer in [1, 2147483647], got 2.0"),
        ({"llama.context_length": 2**32 - 1}, "llama.context_length must be an integer in [1, 2147483647]"),
        ({"llama.block_count": 2**31 - 1}, "block_count must be at most 1, the number of tensors, got 2147483647"),
        ({"llama.expert_count": 513, "llama.expert_used_count": 2}, "expert_count must be at most 512, with 1 to"),
        ({"llama.expert_count": 4, "llama.expert_used_count": 5}, "got 4 with expert_used_count 5"),
        ({"llama.expert_count": 4}, "got 4 with expert_used_count 0"),
        ({"llama.expert_used_count": 4}, "got 0 with expert_used_count 4"),
        ({"llama.expert_count": [4]}, "got array([4], dtype=int32) with expert_used_count 0"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "tokenizer.ggml.tokens is of a wrong type, got ndarray"),
        ({"tokenizer.ggml.tokens": [*TOKENS[:-1], "<s>"]}, "must hold every token once, got '<s>' 2 times"),
        ({"tokenizer.ggml.scores": [0.0]}, "tokenizer.ggml.scores must have 261 entries as the tokens, got 1"),
        ({"tokenizer.ggml.token_type": [0.0]}, "tokenizer.ggml.token_type is of a wrong type, got ndarray"),
        ({"tokenizer.ggml.eos_token_id": 261}, "eos_token_id must be a token id in [0, 261), got 261"),
        ({"tokenizer.ggml.bos_token_id": -1}, "bos_token_id must be a token id in [0, 261), got -1"),
        ({"tokenizer.chat_template": 5}, "tokenizer.chat_template is of a wrong type, got int"),
    ],
)
def test_metadata_that_llama_cpp_cannot_take_is_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    path = write_gguf(tmp_path / "a.gguf", changes)
    with pytest.raises(ModelError) as caught:
        read_header(path)
    assert says in str(caught.value)


def test_a_file_without_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="must hold its vocabulary"):
        read_header(write_gguf(tmp_path / "a.gguf", drop="tokenizer.ggml.tokens"))


def test_every_shorter_file_is_refused(tmp_path: Path) -> None:
    whole, cut = write_gguf(tmp_path / "a.gguf").read_bytes(), tmp_path / "cut.gguf"
    start = len(whole) - 64
    for size in [*range(1, start, 97), start]:
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"truncated|must be a GGUF file"):
            read_header(cut)


def described(path: Path, shape: tuple[int, ...], kind: int, *, data: int, offset: int = 0) -> Path:
    """A file that describes one tensor and has so many bytes of data."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(METADATA))
    head += b"".join(text(key) + value_of(value) for key, value in METADATA.items())
    head += text("a.weight") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
    path.write_bytes(head.ljust(-(-len(head) // 32) * 32, b"\0") + bytes(data))
    return path


@pytest.mark.parametrize(
    ("shape", "kind", "size"),
    [((16,), 0, 64), ((), 0, 4), ((256, 2), 12, 288), ((64, 3), 8, 204), ((3, 2, 2, 2), 30, 48), ((800,), 99, 100)],
)
def test_a_tensor_must_lie_within_its_file(tmp_path: Path, shape: tuple[int, ...], kind: int, size: int) -> None:
    assert read_header(described(tmp_path / "a.gguf", shape, kind, data=size)).tensor_types == {kind}
    with pytest.raises(ModelError, match=r"truncated or damaged: tensor 'a.weight' of shape"):
        read_header(described(tmp_path / "b.gguf", shape, kind, data=size - 1))
    with pytest.raises(ModelError, match=r"truncated or damaged: tensor 'a.weight' of shape"):
        read_header(described(tmp_path / "b.gguf", shape, kind, data=size, offset=32))


@pytest.mark.parametrize("shape", [(2**62,), (2**32, 2**32), (2**63, 2**63, 2**63, 2**63), (2**64 - 1, 1)])
@pytest.mark.parametrize("kind", [0, 12, 99])
def test_tensors_that_are_declared_huge_are_refused(tmp_path: Path, shape: tuple[int, ...], kind: int) -> None:
    with pytest.raises(ModelError, match=r"truncated or damaged: tensor .a.weight. of shape"):
        read_header(described(tmp_path / "a.gguf", shape, kind, data=1 << 12))


@pytest.mark.parametrize(
    "declared",
    [
        struct.pack("<IQ", 8, 2**34),  # a text
        struct.pack("<IIQ", 9, 8, 2**31),  # texts
        struct.pack("<IIQ", 9, 12, 2**31),  # numbers
    ],
)
def test_metadata_that_is_declared_huge_is_refused_before_it_is_read(tmp_path: Path, declared: bytes) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("tokenizer.ggml.tokens") + declared)
    # A file with a hole takes no disk, however long it is.
    os.truncate(path, 1 << 35)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match="must have a header of at most 268435456 bytes, got at least"):
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_damaged_headers_are_read_or_refused(tmp_path: Path) -> None:
    whole, path = bytearray(write_gguf(tmp_path / "a.gguf").read_bytes()), tmp_path / "b.gguf"
    chosen = random.Random(0)
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(chosen.randint(1, 4)):
            damaged[chosen.randrange(len(damaged))] = chosen.randrange(256)
        path.write_bytes(damaged)
        with suppress(ModelError):
            read_header(path)


def test_paths_of_models(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.GGUF")
    assert find_model(path) == path
    assert is_gguf(path)
    (tmp_path / "folder.gguf").mkdir()
    assert find_model(tmp_path / "folder.gguf") == tmp_path / "folder.gguf"
    assert not is_gguf(tmp_path / "folder.gguf")
    with pytest.raises(ModelError, match=r"a GGUF file, got '.*none.gguf': no such file"):
        tirage.LLM(tmp_path / "none.gguf")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backend": "torch"}, "backend must be 'auto' for a GGUF file, which llama.cpp runs, got 'torch'"),
        ({"dtype": "int8"}, "dtype must be 'auto', 'float16' or 'float32' for a GGUF file, got 'int8'"),
        ({"adapters": {"a": "b"}}, "adapters must not be given for a GGUF file"),
        ({"device": "tpu"}, "device must be 'cpu', 'cuda' or 'metal' for a GGUF file, got 'tpu'"),
    ],
)
def test_options_of_other_models_are_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ParamsError) as caught:
        tirage.LLM(write_gguf(tmp_path / "a.gguf"), **options)
    assert says in str(caught.value)


def test_a_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tirage.models.gguf import library

    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    library.load_library.cache_clear()
    try:
        with pytest.raises(ModelError) as caught:
            open_gguf(write_gguf(tmp_path / "a.gguf"))
    finally:
        library.load_library.cache_clear()
    assert str(caught.value) == 'GGUF models need llama-cpp-python, which is missing: pip install "tirage[gguf]"'


def test_layers_of_a_device() -> None:
    assert gpu_layers(None) is None
    assert gpu_layers("cpu") == 0
