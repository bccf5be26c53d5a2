"""Model folders that are meant to hang or crash whoever opens them: each is refused by name, and in time."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tirage
from tirage.errors import ModelError, ParamsError, TirageError
from tirage.models.json_file import check_layers

TINY = Path(tirage.__file__).parent / "models" / "tiny"
WEIGHTS = "model.safetensors"
NESTED = "[" * 100_000 + "]" * 100_000


def edit(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def pipe(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)


def device(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("/dev/zero")


def header(folder: Path, text: str, *, length: int | None = None) -> None:
    data = text.encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(data) if length is None else length) + data)


def replaced(count: int) -> dict[str, Any]:
    replace = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
    return {"type": "Sequence", "normalizers": [replace] * count}


HUGE = {"model.embed_tokens.weight": {"dtype": "F32", "shape": [1 << 40, 1 << 20], "data_offsets": [0, 0]}}
POWER = "{{ 10**(10**9) % 7 }}"
REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nested settings": (lambda f: (f / "config.json").write_text(NESTED), "config.json is not valid JSON"),
    "a huge number": (lambda f: (f / "config.json").write_text('{"a":' + "9" * 10**6 + "}"), "is not valid JSON"),
    "a billion layers": (lambda f: edit(f, "config.json", num_hidden_layers=10**9), "is missing"),
    "a huge vocabulary": (lambda f: edit(f, "config.json", vocab_size=10**12), "must have shape"),
    "nested defaults": (lambda f: (f / "generation_config.json").write_text(NESTED), "is not valid JSON"),
    "a pipe for settings": (lambda f: pipe(f, "config.json"), "must be a regular file, got a pipe"),
    "a pipe for weights": (lambda f: pipe(f, WEIGHTS), "must be a regular file, got a pipe"),
    "a pipe for a template": (lambda f: pipe(f, "chat_template.jinja"), "must be a regular file, got a pipe"),
    "a device for a tokenizer": (lambda f: device(f, "tokenizer.json"), "must be a regular file, got a pipe"),
    "a nested tokenizer": (lambda f: (f / "tokenizer.json").write_text(NESTED), "is not a valid tokenizer"),
    "a tokenizer that repeats": (lambda f: edit(f, "tokenizer.json", normalizer=replaced(3)), "at most 64 times"),
    "a power": (lambda f: (f / "chat_template.jinja").write_text(POWER), "readable within 1 s"),
    "a deep template": (lambda f: (f / "chat_template.jinja").write_text("{{ " + "(" * 20_000), "is not valid"),
    "a long header": (lambda f: header(f, "{}", length=1 << 60), "is not a complete safetensors file"),
    "a nested header": (lambda f: header(f, '{"a":' + NESTED + "}"), "is not a complete safetensors file"),
    "a huge tensor": (lambda f: header(f, json.dumps(HUGE)), "is not a complete safetensors file"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "model"))


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_folder_is_refused_with_what_is_wrong(folder: Path, name: str) -> None:
    spoil, message = REFUSED[name]
    spoil(folder)
    with pytest.raises(TirageError, match=message):
        tirage.LLM(folder, backend="numpy")


@pytest.mark.slow
def test_a_pattern_that_takes_too_many_steps_fails_its_text_alone(folder: Path) -> None:
    split = {"type": "Split", "pattern": {"Regex": "(a|aa)+$b"}, "behavior": "Isolated", "invert": False}
    edit(folder, "tokenizer.json", pre_tokenizer=split)
    with tirage.LLM(folder, backend="numpy") as llm:
        with pytest.raises(ParamsError, match="text must be one that the model's tokenizer can read, it failed"):
            llm.generate("a" * 60 + "c")
        assert llm.generate("Once", tirage.SamplingParams(max_tokens=2))[0].finish_reason == "length"


@pytest.mark.parametrize("name", ["num_hidden_layers", "n_layer", "encoder_layers", "depth", "num_layers"])
def test_more_layers_than_a_library_can_build_are_refused(name: str) -> None:
    path = Path("config.json")
    check_layers({"vision_config": {name: 4096}, "max_window_layers": 28, "hidden_size": 10**9}, path)
    with pytest.raises(ModelError, match=rf"^config\.json: {name} must be at most 4096, got 1000000000"):
        check_layers({"text_config": [{name: 10**9}]}, path)


def test_links_to_regular_files_are_followed(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "blob"
    (folder / "config.json").rename(moved)
    (folder / "config.json").symlink_to(moved)
    tirage.models.find_folder(folder)
    (folder / "gone").symlink_to(tmp_path / "nowhere")
    tirage.models.find_folder(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_a_pipe_of_any_name_is_refused(folder: Path) -> None:
    pipe(folder, "notes.txt")
    with pytest.raises(ModelError, match=r"notes\.txt must be a regular file"):
        tirage.models.find_folder(folder)
