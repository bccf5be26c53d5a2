"""Model folders that are meant to hang or crash whoever opens them: each is refused by name, and in time."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import tirage
from tirage.errors import ModelError, ParamsError, TirageError
from tirage.models.json_file import check_layers
from tirage.text import load_tokenizer, tokenizer_trial
from tirage.text.tokenizer_growth import MOST_ADDED

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


def many_tokens(count: int, each: int) -> dict[str, Any]:
    """A post-processor that puts so many special tokens of so many ids each before a text."""
    text = [{"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * count + text,
        "pair": [*text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1] * each, "tokens": ["<s>"] * each}},
    }


def long_words(folder: Path, count: int) -> None:
    """Added tokens of 100 kB each, whose automaton takes eighty times as much."""
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    more = [{"id": 9000 + i, "content": str(i) + "q" * 100_000, **flags} for i in range(count)]
    edit(folder, "tokenizer.json", added_tokens=[*added, *more])


def grown(folder: Path, name: str, size: int) -> None:
    """Makes a file so long without writing so much."""
    os.truncate(folder / name, size)


def sparse(folder: Path, name: str) -> None:
    (folder / name).touch()
    grown(folder, name, 1 << 30)


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
    "a tokenizer of a gigabyte": (lambda f: grown(f, "tokenizer.json", 1 << 30), "must be at most 268435456 bytes"),
    "settings of a gigabyte": (lambda f: grown(f, "tokenizer_config.json", 1 << 30), "must be at most 16777216 bytes"),
    "a template of a gigabyte": (lambda f: sparse(f, "chat_template.jinja"), "must be at most 16777216 bytes"),
    "a damaged tokenizer that is large": (lambda f: grown(f, "tokenizer.json", 3 << 20), "is not a valid tokenizer"),
    "a thousand tokens a thousand times": (
        lambda f: edit(f, "tokenizer.json", post_processor=many_tokens(1000, 1000)),
        "to a text, got 100000",
    ),
    "a long text before each": (
        lambda f: edit(f, "tokenizer.json", normalizer={"type": "Prepend", "prepend": "x" * 5000}),
        "to a text, got 500",
    ),
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
def test_a_tokenizer_that_takes_too_much_memory_is_read_in_a_child_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_words(folder, 30)
    monkeypatch.setattr(tokenizer_trial, "MEGABYTES", 100)
    with pytest.raises(ModelError, match=r"must be readable within 60 s and 100 MB, got one that is not"):
        load_tokenizer(folder / "tokenizer.json")
    monkeypatch.setattr(tokenizer_trial, "MEGABYTES", 2000)
    monkeypatch.setattr(tokenizer_trial, "SECONDS", 0.001)
    with pytest.raises(ModelError, match=r"must be readable within 0\.001 s and 2000 MB, got one that is not"):
        load_tokenizer(folder / "tokenizer.json")


@pytest.mark.slow
def test_a_large_tokenizer_that_is_sound_is_read(folder: Path) -> None:
    long_words(folder, 11)
    assert (folder / "tokenizer.json").stat().st_size > tokenizer_trial.TRIED_BYTES
    assert load_tokenizer(folder / "tokenizer.json").encode("Once")


def test_both_sides_of_the_sizes_of_a_tokenizer_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, tried = folder / "tokenizer.json", list[Path]()
    size = path.stat().st_size
    monkeypatch.setattr(tokenizer_trial, "read_on_trial", tried.append)
    for most, expected in ((size, []), (size - 1, [path])):
        monkeypatch.setattr(tokenizer_trial, "TRIED_BYTES", most)
        load_tokenizer(path)
        assert tried == expected
    monkeypatch.setattr(tokenizer_trial, "MOST_BYTES", size)
    load_tokenizer(path)
    monkeypatch.setattr(tokenizer_trial, "MOST_BYTES", size - 1)
    with pytest.raises(ModelError, match=rf"must be at most {size - 1} bytes of JSON, got {size}"):
        load_tokenizer(path)


def test_both_sides_of_what_a_tokenizer_may_add_to_a_text(folder: Path) -> None:
    path = folder / "tokenizer.json"
    for count in (MOST_ADDED, MOST_ADDED + 1):
        edit(folder, "tokenizer.json", normalizer={"type": "Prepend", "prepend": "a" * count}, post_processor=None)
        with (
            nullcontext()
            if count == MOST_ADDED
            else pytest.raises(
                ModelError, match=f"must add at most {MOST_ADDED} characters and tokens to a text, got {count}"
            )
        ):
            load_tokenizer(path)


@pytest.mark.slow
def test_a_pattern_that_takes_too_many_steps_fails_its_text_alone(folder: Path) -> None:
    split = {"type": "Split", "pattern": {"Regex": "(a|aa)+$b"}, "behavior": "Isolated", "invert": False}
    edit(folder, "tokenizer.json", pre_tokenizer=split)
    with tirage.LLM(folder, backend="numpy") as llm:
        with pytest.raises(ParamsError, match="text must be one that the model's tokenizer can read, it failed"):
            llm.generate("a" * 60 + "c")
        assert llm.generate("Once", tirage.SamplingParams(max_tokens=2))[0].finish_reason == "length"


@pytest.mark.parametrize("tried", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"model": {"continuing_subword_prefix": "a" * 1000}},
    ],
)
def test_a_tokenizer_on_which_the_library_panics_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], tried: bool
) -> None:
    path = folder / "tokenizer.json"
    model = json.loads(path.read_text())["model"]
    edit(folder, "tokenizer.json", **{**changes, "model": {**model, **changes.get("model", {})}})
    if tried:
        monkeypatch.setattr(tokenizer_trial, "TRIED_BYTES", 0)
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a valid tokenizer: "):
        load_tokenizer(path)


@pytest.mark.parametrize(
    "model",
    [
        {"type": "WordLevel", "vocab": {"Once": 0}, "unk_token": "<none>"},
        {"type": "WordPiece", "vocab": {"Once": 0}, "unk_token": "<none>", "continuing_subword_prefix": "##"}
        | {"max_input_chars_per_word": 100},
        {
            "type": "Unigram",
            "vocab": [["Once", 0.0], *([letter, -9.0] for letter in "Once")],
            "unk_id": None,
            "byte_fallback": False,
        },
    ],
)
def test_a_word_that_a_tokenizer_has_no_token_for_fails_its_text_alone(folder: Path, model: dict[str, Any]) -> None:
    plain = {"normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None, "added_tokens": []}
    edit(folder, "tokenizer.json", model=model, **plain)
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    assert tokenizer.encode("Once") == [0]
    for text in ("Never", "Never" * 1000):
        with pytest.raises(ParamsError, match=r"^text must be one that the model's tokenizer can read, it failed: "):
            tokenizer.encode(text)


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
