"""What is wrong with a file or a request is an error that says so, and never the end of the process."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from gguf_models import greedy, random_folder

import tirage
from tirage import LLM, ModelError, ParamsError, Prompt
from tirage.models.gguf.library import TESTED, load_library

OPEN = """
import sys, tirage
for path in sys.argv[1:]:
    try:
        with tirage.LLM(path) as llm:
            llm.generate("hello", tirage.SamplingParams(max_tokens=3))
    except tirage.TirageError as error:
        print(type(error).__name__, error)
    else:
        print("ran")
"""


def opened(paths: list[Path]) -> list[str]:
    """What another process says of each file: it is the other one that would die."""
    command = [sys.executable, "-c", OPEN, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_a_file_that_ends_early_is_refused(tmp_path: Path) -> None:
    whole = random_folder().with_name("q8.gguf").read_bytes()
    paths = []
    for share in (0.05, 0.3, 0.7, 0.999):
        paths.append(tmp_path / f"{share}.gguf")
        paths[-1].write_bytes(whole[: int(share * len(whole))])
    for path, line in zip(paths, opened(paths), strict=True):
        assert line.startswith("ModelError")
        assert str(path) in line
        assert "truncated" in line or "not within the file bounds" in line


def test_an_architecture_that_llama_cpp_does_not_know_is_refused(tmp_path: Path) -> None:
    whole = random_folder().with_name("q8.gguf").read_bytes()
    path = tmp_path / "a.gguf"
    path.write_bytes(whole.replace(b"llama", b"lxama"))
    with pytest.raises(ModelError, match="unknown model architecture: 'lxama'"):
        LLM(path)


def test_damaged_headers_do_not_end_the_process(tmp_path: Path) -> None:
    whole, chosen = random_folder().with_name("q8.gguf").read_bytes(), random.Random(1)
    paths = []
    for at in range(40):
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[chosen.randrange(24, 12000)] = chosen.randrange(256)
        paths.append(tmp_path / f"{at}.gguf")
        paths[-1].write_bytes(damaged)
    said = opened(paths)
    assert len([line for line in said if line.startswith(("ModelError", "ran"))]) == len(paths)


def test_a_prompt_beyond_the_context_is_refused() -> None:
    with LLM(random_folder().with_name("q8.gguf")) as llm:
        with pytest.raises(ParamsError, match="1024"):
            llm.generate([list(range(3, 103)) * 11], greedy(5))
        done = llm.generate([list(range(3, 103)) * 10], greedy(500))[0]
        assert done.usage.total_tokens == 1024 or len(done.token_ids) == 24
        assert (done.finish_reason, done.stop.kind) == ("length", "context")
        with pytest.raises(ModelError, match="context holds 1024 tokens, got 1025"):
            llm.engine.call(lambda: llm.model.prefill([5] * 1025))


def test_what_a_gguf_model_does_not_take_is_refused() -> None:
    with LLM(random_folder().with_name("q8.gguf")) as llm:
        with pytest.raises(ParamsError, match="return_hidden_states must not be given"):
            llm.generate("a", greedy(3), return_hidden_states=True)
        with pytest.raises(ParamsError, match="adapter must not be given"):
            llm.generate(Prompt(text="a", adapter="x"), greedy(3))
        with pytest.raises(ParamsError, match=r"in \[0, 512\), got 512"):
            llm.generate([[512]], greedy(3))


def test_a_batch_that_fails_ends_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    library = load_library()
    with LLM(random_folder().with_name("q8.gguf")) as llm:
        expected = [done.token_ids for done in llm.generate(["one", "two"], greedy(20))]
        decode, calls = library.llama_decode, [0]

        def failing(*given: object) -> int:
            calls[0] += 1
            return -3 if calls[0] in (4, 9) else decode(*given)

        monkeypatch.setattr(library, "llama_decode", failing)
        assert [done.token_ids for done in llm.generate(["one", "two"], greedy(20))] == expected


def test_a_library_without_a_function_is_refused_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    library = load_library()
    load_library.cache_clear()
    monkeypatch.delattr(library, "llama_memory_seq_cp")
    try:
        with pytest.raises(ModelError) as caught:
            load_library()
    finally:
        load_library.cache_clear()
    assert "has no llama_memory_seq_cp; tirage knows" in str(caught.value)
    assert TESTED[1] in str(caught.value)


def test_libllama_writes_nothing_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with tirage.LLM(random_folder().with_name("q8.gguf")) as llm:
        llm.generate("a", greedy(3))
    assert capfd.readouterr().err == ""
