"""Commands whose standard streams are closed, as those of daemons and scheduled jobs may be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tirage.cli import given, main
from tirage.cli import replay as replay_command
from tirage.errors import ParamsError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="closes streams with sh")
GENERATE = ("generate", "Once upon", "--temperature", "0", "--max-tokens", "2")


def run(closed: str, *arguments: str) -> tuple[int, str, str]:
    """Status, stdout and stderr of `tirage` with streams that are closed as a shell does it, such as `2>&-`."""
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "tirage", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_a_closed_stderr_takes_the_notes_and_leaves_the_text() -> None:
    assert run("2>&-", *GENERATE) == (0, " a time\n", "")
    code, out, err = run("2>&-", *GENERATE, "--output", "jsonl")
    assert (code, json.loads(out)["text"], err) == (0, " a time", "")
    assert run("2>&-", "generate", "Once", "--top-p", "7") == (2, "", "")


def test_a_closed_stdout_takes_the_text() -> None:
    code, out, err = run(">&-", *GENERATE)
    assert (code, out) == (0, "")
    assert err.startswith("seed ")


def test_a_batch_with_all_streams_closed_writes_its_results(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": 1, "prompt": "Once upon"}\n', encoding="utf-8")
    options = ("--out", str(tmp_path / "out"), "--temperature", "0", "--max-tokens", "2")
    assert run("<&- >&- 2>&-", "batch", str(tmp_path / "in.jsonl"), *options) == (0, "", "")
    (results,) = (tmp_path / "out").glob("*.jsonl")
    assert json.loads(results.read_text(encoding="utf-8"))["text"] == " a time"


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("generate", "-", "--model", "none"), "PROMPT -"),
        (("explain", "-", "--model", "none"), "PROMPT -"),
        (("chat", "--model", "none"), "a chat"),
        (("convert", "-", "--from", "vllm", "--to", "sglang"), "REQUEST -"),
        (("detect", "-", "--scheme", "gumbel", "--key", "1"), "TEXT_FILE -"),
        (("replay", "-"), "FILE -"),
    ],
)
def test_what_needs_a_closed_stdin_is_refused_before_a_model_is_opened(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], wanted: str
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    out, err = capsys.readouterr()
    assert (exit_.value.code, out) == (2, "")
    assert err == f"error: stdin must be open for {wanted}, got a closed one; give it input\n"


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="has no device without an end")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("convert", "/dev/zero", "--from", "vllm", "--to", "sglang"), "/dev/zero must hold at most 1000 characters"),
        (("detect", "/dev/zero", "--scheme", "gumbel", "--key", "1"), "/dev/zero must hold at most 1000 characters"),
        (("detect", "x", "--scheme", "gumbel", "--key", "@/dev/zero"), "/dev/zero must hold at most 1000 characters"),
        (("generate", "a", "--watermark", "@/dev/zero"), "/dev/zero must hold at most 1000 characters"),
        (("generate", "a", "--json-schema", "/dev/zero"), "/dev/zero must hold at most 1000 characters"),
        (("generate", "a", "--grammar", "/dev/zero"), "/dev/zero must hold at most 1000 characters"),
        (("replay", "/dev/zero"), "file must have at most 1000 bytes, got more in /dev/zero"),
        (("chat", "--chat-template", "/dev/zero"), "/dev/zero must be at most 16777216 bytes of template text"),
        (("serve", "--watermark", "/dev/zero"), "--watermark must be a file of JSON with a scheme and a key, got /dev"),
    ],
)
def test_a_file_without_an_end_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr(given, "MOST_CHARACTERS", 1000)
    monkeypatch.setattr(replay_command, "MOST_BYTES", 1000)
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code in (1, 2)
    assert f"error: {message}" in capsys.readouterr().err


def test_both_sides_of_the_longest_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "text"
    file.write_text("é" * 10, encoding="utf-8")
    for most in (10, 9):
        monkeypatch.setattr(given, "MOST_CHARACTERS", most)
        if most == 10:
            assert given.read_file(file) == "é" * 10
        else:
            with pytest.raises(ParamsError, match="must hold at most 9 characters, got more"):
                given.read_file(file)
