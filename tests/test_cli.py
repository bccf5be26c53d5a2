"""The command line: text alone on stdout, every parameter an option, every mistake named on stderr."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tirage
from tirage import LLM, Delta, ParamsError, SamplingParams, Watermark
from tirage.cli import main
from tirage.cli.derived import as_option
from tirage.cli.guided import OPTIONS as GUIDED_OPTIONS
from tirage.cli.options import NO_OPTION, OPTIONS, parse_options
from tirage.errors import RemoteError
from tirage.fields.rules import BrokenRuleError, Ids, OneOf, Texts
from tirage.params import FIELDS, FieldSpec

Run = Callable[..., tuple[int, str, str]]
PROMPT = "Once upon a time"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line in this process: exit status, stdout, stderr."""

    def call(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return call


@pytest.fixture(scope="module")
def tiny() -> LLM:
    return LLM("tiny")


@pytest.mark.slow
def test_generate_prints_the_new_text_alone(run: Run, tiny: LLM) -> None:
    code, out, err = run(
        "generate", PROMPT, "--temperature", "0.8", "--top-p", "0.95", "--seed", "7", "--max-tokens", "30"
    )
    expected = tiny.generate(PROMPT, SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=30))[0]
    assert (code, out) == (0, f"{expected.text}\n")
    assert err.startswith("seed 7 | 30 tokens in ")
    assert err.endswith("| length: max_tokens\n")


@pytest.mark.slow
def test_generate_stops_at_128_tokens_unless_told_otherwise(run: Run) -> None:
    _, _, err = run("generate", PROMPT, "--seed", "1", "--ignore-eos")
    assert "| 128 tokens in" in err


@pytest.mark.slow
def test_max_tokens_none_fills_the_context(run: Run, tiny: LLM) -> None:
    long = "Once upon a time " * 100
    room = 512 - len(tiny.tokenizer.encode(long))
    _, _, err = run("generate", long, "--ignore-eos", "--max-tokens", "none")
    assert f"| {room} tokens in" in err
    assert "| length: context" in err


def test_several_texts_come_one_after_the_other(run: Run, tiny: LLM) -> None:
    options = ("--seed", "7", "--max-tokens", "4", "-n", "3")
    code, out, err = run("generate", PROMPT, *options)
    samples = tiny.generate(PROMPT, SamplingParams(seed=7, max_tokens=4, n=3))[0].samples
    assert (code, out) == (0, "".join(f"{sample.text}\n" for sample in samples))
    assert err.splitlines()[:3] == [f"^ {number} of 3, length" for number in (1, 2, 3)]


def test_log_probabilities_are_a_table_on_stderr(run: Run, tiny: LLM) -> None:
    _, out, err = run("generate", PROMPT, "--seed", "7", "--max-tokens", "2", "--logprobs", "2")
    sample = tiny.generate(PROMPT, SamplingParams(seed=7, max_tokens=2, logprobs=2))[0].samples[0]
    assert out == f"{sample.text}\n"
    head, *rows = err.splitlines()[:-1]
    assert head.split() == ["token", "logprob", "probability", "rank", "likeliest"]
    assert [row.split()[1] for row in rows] == [f"{entry.logprob:.3f}" for entry in sample.logprobs or ()]
    assert [row.count("%") for row in rows] == [3, 3]
    _, _, quiet = run("generate", PROMPT, "--seed", "7", "--max-tokens", "2", "--logprobs", "2", "--quiet")
    assert quiet.splitlines() == [head, *rows]


def test_json_lines_have_what_a_batch_has(run: Run, tiny: LLM) -> None:
    options = ("--seed", "7", "--max-tokens", "2", "-n", "2", "--logprobs", "0", "--output", "jsonl", "--quiet")
    code, out, err = run("generate", PROMPT, *options)
    samples = tiny.generate(PROMPT, SamplingParams(seed=7, max_tokens=2, n=2, logprobs=0))[0].samples
    found = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [(row["index"], row["text"], row["token_ids"]) for row in found] == [
        (sample.index, sample.text, list(sample.token_ids)) for sample in samples
    ]
    assert {name for row in found for name in row} == {
        *("index", "text", "token_ids", "finish_reason", "seed", "logprobs")
    }
    assert run("generate", PROMPT, "--output", "jsnol")[2] == (
        "error: --output must be text or jsonl, got 'jsnol'; did you mean 'jsonl'?\n"
    )


def test_quiet_keeps_stderr_empty(run: Run) -> None:
    assert run("generate", PROMPT, "--max-tokens", "0", "--quiet") == (0, "\n", "")


@pytest.mark.slow
def test_a_prompt_may_come_from_stdin(run: Run) -> None:
    options = ("--temperature", "0", "--max-tokens", "8", "--quiet")
    assert run("generate", "-", *options, stdin=PROMPT) == run("generate", PROMPT, *options)


# What is typed for an option and what must arrive, where `example` cannot tell from the field.
VALUES: dict[str, tuple[list[str], Any]] = {
    "frequency_penalty": (["-0.5"], -0.5),
    "logprobs": (["4"], 4),
    "logprobs_mode": (["sampled"], "sampled"),
    "seed": (["-7"], -7),
    "stop": ([".", "two words"], (".", "two words")),
    "stop_token_ids": (["5", "9"], (5, 9)),
    "stop_pattern": ([r"\d+"], r"\d+"),
    "bad_words": (["cat", "dog"], ("cat", "dog")),
    "bad_words_level": (["text"], "text"),
    "max_tokens": (["3"], 3),
    "truncate_prompt_tokens": (["4"], 4),
    "logit_bias": (['{"5": -1, "7": "-inf"}'], {5: -1.0, 7: float("-inf")}),
    "allowed_token_ids": (["300", "301"], (300, 301)),
    "bad_words_token_ids": (["[[3, 4], 5]"], ((3, 4), (5,))),
    "sequence_bias": (['[[[3, 4], -1.5], [[5], "-inf"]]'], (((3, 4), -1.5), ((5,), float("-inf")))),
    "p_less": (["norm"], "norm"),
    "semantics": (["vllm"], "vllm"),
    "forcing": (["canonical"], "canonical"),
    "reasoning_parser": (["qwen3"], "qwen3"),
    "thinking_budget": (["8"], 8),
    "xtc_protected_ids": (["13"], (13,)),
    "watermark": (['{"scheme": "gumbel", "key": 13}'], Watermark(scheme="gumbel", key=13)),
    "dry_last_n": (["64"], 64),
    "mirostat": (["2"], 2),
    "dry_sequence_breakers": ([";"], (";",)),
    "dry_breaker_token_ids": (["13"], (13,)),
}


def example(name: str) -> tuple[list[str], Any]:
    """What is typed for an option and what must arrive: the other truth value, or a number that the field takes."""
    default = FIELDS[name].default
    if name in VALUES:
        return VALUES[name]
    if isinstance(default, bool):
        return (["no"], False) if default else ([], True)
    numbers = (3,) if isinstance(default, int) else (0.25, 1.25)
    return next(([str(number)], number) for number in numbers if number != default and accepts(name, number))


def accepts(name: str, value: float) -> bool:
    try:
        return FIELDS[name].check(value) == value
    except ParamsError:
        return False


def test_every_parameter_is_an_option_or_left_out_by_name() -> None:
    assert set(OPTIONS) | NO_OPTION == {name for name, spec in FIELDS.items() if spec.public}
    assert set(VALUES) <= set(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_arrives_as_the_parameter_of_that_name(run: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    seen: list[SamplingParams] = []

    def stream(self: LLM, prompt: str, params: SamplingParams) -> Iterator[Delta]:
        seen.append(params)
        return original(self, prompt, SamplingParams(max_tokens=0))

    original = LLM.stream
    monkeypatch.setattr(LLM, "stream", stream)
    typed, expected = example(name)
    flag = f"--{name.replace('_', '-')}"
    arguments = [part for value in typed for part in (flag, value)] or [flag]
    if typed == ["no"]:
        arguments = [f"--no-{flag[2:]}"]
    assert run("generate", PROMPT, *arguments)[0] == 0
    assert getattr(seen[0], name) == expected


TEXT_OPTIONS = {
    "stop_pattern", "dry_sequence_breakers", "json_schema", "regex", "choice", "grammar", "whitespace_pattern",
    "structural_tag",
}  # fmt: skip


def none_is_legal(spec: FieldSpec) -> bool:
    try:
        spec.check(None)
    except ParamsError:
        return False
    return not (isinstance(spec.rule, OneOf) and True in spec.rule.values)


@pytest.mark.parametrize("name", [name for name, spec in (OPTIONS | GUIDED_OPTIONS).items() if none_is_legal(spec)])
@pytest.mark.parametrize("word", ["none", "None"])
def test_none_turns_off_what_can_be_none_but_texts(name: str, word: str) -> None:
    spec = (OPTIONS | GUIDED_OPTIONS)[name]
    listed = isinstance(spec.rule, (Texts, Ids))
    given = {name: [word] if listed else word}
    if name in ("json_schema", "grammar", "structural_tag"):
        with pytest.raises(ParamsError, match=f"{name} must be text or the name of a file, got '{word}'"):
            parse_options(given)
        return
    if name == "whitespace_pattern":
        given["json_schema"] = "{}"
    params = parse_options(given)
    record = params.guided_decoding if name in GUIDED_OPTIONS else params
    found = getattr(record, spec.name, None)
    assert found == (((word,) if listed else word) if name in TEXT_OPTIONS else spec.check(None))


@pytest.mark.parametrize("name", [name for name, spec in (OPTIONS | GUIDED_OPTIONS).items() if spec.has_off])
def test_a_remedy_is_something_that_the_command_line_takes(name: str) -> None:
    spec = as_option((OPTIONS | GUIDED_OPTIONS)[name])
    remedy = str(spec.error(BrokenRuleError("another", "x"))).partition("; ")[2]
    if remedy == "leave it out to turn it off":
        return
    word = remedy.removesuffix(" to turn it off").rpartition(" ")[2]
    if word in ("True", "False"):
        return  # a switch, which takes no value and so no wrong one
    fields = parse_options({name: word.strip("'")})
    assert name in GUIDED_OPTIONS or spec.is_off(getattr(fields, name))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--forcing", "x"), "error: forcing must be one of None, 'canonical', got 'x'; use none to turn it off\n"),
        (
            ("--logit-bias", "x"),
            "error: logit_bias must be a mapping from token id to a number, or None, got 'x'; use none",
        ),
        (("--stop-token-ids", "none"), "error: stop_token_ids[0] must be a token id in "),
        (("--regex", ""), "error: regex must be a non-empty string, got ''; leave it out to turn it off\n"),
        (("--top-p", "0"), "error: top_p must be in (0, 1], got 0.0; use 1.0 to turn it off\n"),
        (("--top-p", "much"), "error: top_p must be a number in (0, 1], got 'much'; use 1.0 to turn it off\n"),
        (("--seed", str(2**63)), "error: seed must be "),
        (("--stop-token-ids", "x"), "error: stop_token_ids"),
        (("--logit-bias", "{"), "error: logit_bias must be a mapping"),
        (("--logit-bias", "[" * 9999), "error: logit_bias must be a mapping"),
        (("--semantics", "vlm"), "error: semantics"),
        (("--min-tokens", "9", "--max-tokens", "3"), "error: min_tokens"),
        (("--stop-pattern", "("), "error: stop_pattern"),
        (
            ("--device", "foo"),
            "error: device must be one of this machine, such as 'cpu', 'cuda' or 'cuda:1', got 'foo' (",
        ),
    ],
)
def test_a_bad_value_ends_with_status_2_and_one_line(run: Run, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = run("generate", PROMPT, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_the_key_of_a_server_is_refused_with_a_model_unless_it_is_that_of_the_environment(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run("generate", PROMPT, "--api-key", "secret")
    assert (code, err) == (2, "error: --api-key must be left out with a model in this process\n")
    monkeypatch.setenv("TIRAGE_API_KEY", "secret")
    assert run("generate", PROMPT, "--max-tokens", "1")[0] == 0


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        (("generate", PROMPT), "leave it out for the default, 128"),
        (("explain", PROMPT), "leave it out for the default, 128"),
        (("batch", "in.jsonl", "--out", "out"), "leave it out for the default, 128"),
        (("chat",), "leave it out to fill the context"),
    ],
)
def test_an_error_names_the_default_of_the_command(run: Run, command: tuple[str, ...], remedy: str) -> None:
    code, out, err = run(*command, "--max-tokens", "-1")
    assert (code, out) == (2, "")
    assert err.endswith(f", got -1; {remedy}\n")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("generate", PROMPT, "--tempratur", "1"), "--temperature"),
        (("genrate", PROMPT), "Did you mean 'generate'?"),
        (("serve", "--prot", "1"), "--port"),
        (("generate",), "Missing argument 'PROMPT'"),
        (("generate", "two", "words"), "unexpected extra argument"),
    ],
)
def test_a_wrong_option_or_command_is_refused_with_the_nearest_name(
    run: Run, arguments: tuple[str, ...], hint: str
) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert hint in err


def test_the_version_is_told(run: Run) -> None:
    assert run("--version") == (0, f"tirage {tirage.__version__}\n", "")


def test_a_model_that_cannot_be_used_ends_with_status_1(run: Run, tmp_path: Path) -> None:
    code, out, err = run("generate", PROMPT, "--model", str(tmp_path))
    assert (code, out) == (1, "")
    assert "config.json cannot be read" in err


@pytest.mark.slow
def test_the_installed_command_writes_utf_8_and_no_traceback() -> None:
    command = [sys.executable, "-m", "tirage", "generate", PROMPT, "--temperature", "0", "--max-tokens", "5"]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, check=True)
    assert done.stdout.startswith(",")
    assert "Traceback" not in done.stderr
    bad = subprocess.run([*command, "--top-k", "-5"], capture_output=True, encoding="utf-8", env=environment)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("error: top_k must be")


@pytest.mark.slow
def test_chat_answers_line_by_line(run: Run, tiny: LLM) -> None:
    code, out, err = run("chat", "--temperature", "0", stdin="Hello!\n\nWhat is your name?\n")
    params = SamplingParams(temperature=0, max_tokens=None)
    messages = [{"role": "user", "content": "Hello!"}]
    first = tiny.chat(messages, params).text
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "What is your name?"}]
    assert (code, out) == (0, f"{first}\n{tiny.chat(messages, params).text}\n")
    assert err.count("| stop: eos") == 2


@pytest.mark.slow
def test_a_reply_may_fill_the_context(run: Run) -> None:
    _, _, err = run("chat", "--seed", "1", "--ignore-eos", stdin=f"Hello!\n{'More! ' * 200}\n")
    tokens, reason = err.splitlines()[0].split(" | ")[1:]
    assert (int(tokens.split()[0]) > 400, reason) == (True, "length: context")
    assert err.splitlines()[1].endswith("shorten it or set truncate_prompt_tokens; /reset forgets the conversation")


def test_chat_commands_change_the_parameters(run: Run) -> None:
    lines = ["/set temperature 0.5", "/set top-p=0.9", "/seed 4", "/set ignore_eos true", "/seed none", "/quit", "x"]
    code, out, err = run("chat", stdin="\n".join(lines))
    assert (code, out) == (0, "")
    assert err.splitlines() == ["temperature = 0.5", "top_p = 0.9", "seed = 4", "ignore_eos = True", "seed = None"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/set temprature 1", "parameter must be a known name, got 'temprature'; did you mean 'temperature'?"),
        ("/set top_p 0", "top_p must be in (0, 1], got 0.0"),
        ("/set ignore_eos maybe", "ignore_eos must be"),
        ("/set max_tokens -1", "got -1; leave it out to fill the context"),
        ("/sed 4", "/sed is no command; did you mean '/seed'?"),
        ("/explain", "explain must follow a reply"),
        ("x" * 5000, "at most 512 tokens"),
    ],
)
def test_a_mistake_does_not_end_a_chat(run: Run, line: str, message: str) -> None:
    code, out, err = run("chat", "--max-tokens", "1", "--quiet", stdin=f"{line}\n/set top_k 3\n")
    assert (code, out) == (0, "")
    assert message in err
    assert err.endswith("top_k = 3\n")


@pytest.mark.slow
def test_reset_forgets_the_conversation(run: Run) -> None:
    options = ("--temperature", "0", "--quiet", "--system", "Be kind.")
    _, twice, _ = run("chat", *options, stdin="Hello!\n/reset\nHello!\n")
    _, once, _ = run("chat", *options, stdin="Hello!\n")
    assert twice == once * 2


def test_explain_in_a_chat_shows_the_draw_of_the_last_reply(run: Run, tiny: LLM) -> None:
    _, out, _ = run("chat", "--seed", "3", "--max-tokens", "1", "--top-k", "5", stdin="Hello!\n/explain\n")
    reply = tiny.chat([{"role": "user", "content": "Hello!"}], SamplingParams(seed=3, max_tokens=1, top_k=5))
    assert out.startswith(f"{reply.text}\n")
    assert f"#{reply.token_ids[0]} " in out
    assert "top_k" in out


def test_an_interrupt_stops_the_reply_and_keeps_what_was_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def chat_stream(self: LLM, messages: list[dict[str, str]], params: SamplingParams) -> Iterator[Delta]:
        asked.append([message["content"] for message in messages])
        yield Delta(text="I was")
        raise KeyboardInterrupt

    monkeypatch.setattr(LLM, "chat_stream", chat_stream)
    code, out, _ = run("chat", stdin="one\ntwo\n")
    assert (code, out) == (0, "I was\nI was\n")
    assert asked == [["one"], ["one", "I was", "two"]]


@pytest.mark.slow
def test_explain_prints_a_table_a_page_or_json(run: Run, tmp_path: Path, tiny: LLM) -> None:
    options = ("explain", PROMPT, "--seed", "7", "--top-k", "3")
    drawn = tiny.generate(PROMPT, SamplingParams(seed=7, top_k=3, max_tokens=1))[0].token_ids[0]
    code, out, _ = run(*options, "--json")
    assert (code, json.loads(out)["token_id"]) == (0, drawn)
    code, out, _ = run(*options)
    assert code == 0
    assert f"#{drawn} " in out
    page = tmp_path / "page.html"
    code, out, err = run(*options, "--html", str(page))
    assert (code, out, err) == (0, "", f"wrote {page}\n")
    assert "top_k" in page.read_text(encoding="utf-8")


def test_explain_takes_a_position_of_the_prompt(run: Run, tiny: LLM) -> None:
    drawn = tiny.generate("Once", SamplingParams(seed=7, max_tokens=1))[0].token_ids[0]
    _, out, _ = run("explain", "Once upon a time", "--seed", "7", "--json", "--position", "1")
    ids = tiny.tokenizer.encode("Once upon a time")
    assert ids[:2] == tiny.tokenizer.encode("Once")
    assert json.loads(out)["token_id"] == drawn


def test_models_lists_what_comes_with_the_package(run: Run) -> None:
    code, out, _ = run("models")
    assert code == 0
    assert [line.split("\t")[0] for line in out.splitlines()] == ["tiny"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_a_page_that_cannot_be_written_is_an_error_line(run: Run) -> None:
    code, out, err = run("explain", PROMPT, "--html", "/dev/full")
    assert (code, out) == (1, "")
    assert err == "error: the output: No space left on device\n"


def test_a_backend_that_cannot_do_what_is_asked_is_named(run: Run) -> None:
    code, _, err = run("generate", PROMPT, "--backend", "numpy", "--dtype", "int8")
    assert (code, err.splitlines()[-1][:54]) == (2, "error: dtype must not be given on the NumPy backend; u")
    code, _, err = run("generate", PROMPT, "--backend", "tpu")
    assert (code, "backend must be" in err) == (2, True)


@pytest.mark.slow
def test_int8_is_one_switch(run: Run) -> None:
    code, out, err = run("generate", PROMPT, "--dtype", "int8", "--temperature", "0", "--max-tokens", "6")
    assert (code, bool(out.strip())) == (0, True)
    assert "6 tokens" in err


def test_an_error_before_the_first_word_leaves_no_empty_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def stream(self: LLM, prompt: str, params: SamplingParams) -> Iterator[Delta]:
        yield from (Delta(text=text) for text in written)
        raise RemoteError("the server has gone")

    monkeypatch.setattr(LLM, "stream", stream)
    assert run("generate", PROMPT) == (1, "", "error: the server has gone\n")
    written.append("half a line")
    assert run("generate", PROMPT) == (1, "half a line\n", "error: the server has gone\n")


def test_what_went_wrong_is_told_after_the_text(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from tirage.engine.plain_model import PlainModel

    def full(*_: Any) -> None:
        raise MemoryError("full")

    monkeypatch.setattr(PlainModel, "decode", full)
    code, _, err = run("generate", PROMPT, "--seed", "1")
    assert code == 1
    assert err.splitlines()[-1].endswith("| error: model_failed: MemoryError: full")
