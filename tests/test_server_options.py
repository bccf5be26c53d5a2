"""The table of settings: flags, ranges, defaults; and what the operator's plugins are."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tirage.cli import main
from tirage.errors import ParamsError, TirageError
from tirage.processors import find_processor, unregister_processor
from tirage.server.errors import Refusal, clean, envelope, of, of_stop, subject
from tirage.server.logs import JsonFormatter, PlainFormatter, escape
from tirage.server.options import FLAGS, LIMIT_FLAGS, Limits, Options, check_limit, from_environment
from tirage.server.plugins import load_processors, read_adapters
from tirage.server.reference import filled
from tirage.text import Stop

DEFAULTS = {
    "max_body": 32 << 20, "max_json_depth": 64, "max_prompts": 128, "max_n": 128, "max_best_of": 20, "max_beams": 128,
    "max_samples": 256, "max_top_logprobs": 20, "max_stop": 32, "max_stop_chars": 256, "max_bad_words": 128,
    "max_logit_bias": 1024, "max_rid": 128, "max_media": 16, "max_media_bytes": 32 << 20,
    "max_media_pixels": 32_000_000, "max_running": 256, "max_queue": 1024, "host": "127.0.0.1", "port": 30000,
    "drain_timeout": 30.0, "stall_timeout": 30.0, "header_timeout": 10.0, "body_timeout": 30.0, "keep_alive": 5.0,
    "max_audio_seconds": 600.0,
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_defaults_are_those_of_the_documentation(name: str) -> None:
    options = Options()
    assert getattr(options.limits if name in LIMIT_FLAGS else options, name) == DEFAULTS[name] == FLAGS[name].default


@pytest.mark.parametrize("name", FLAGS)
def test_every_setting_has_a_flag_with_its_name_and_a_meaning(name: str) -> None:
    flag = FLAGS[name]
    assert flag.flag == f"--{name.replace('_', '-')}"
    assert len(flag.help) > 10


@pytest.mark.parametrize("name", [name for name, flag in FLAGS.items() if flag.low is not None])
def test_a_number_out_of_its_range_is_refused_by_its_flag(name: str) -> None:
    flag = FLAGS[name]
    for value in (flag.low - 1, float("nan"), float("inf"), "5", True):
        with pytest.raises(ParamsError, match=rf"^{flag.flag} must be "):
            Options.of(**{name: value})
    weighted = {"api_key": "one"} if name == "key_weight" else {}
    assert Options.of(**{name: flag.kind(flag.low)}, **weighted)


@pytest.mark.parametrize("name", [name for name, flag in FLAGS.items() if flag.choices])
def test_a_word_that_is_no_choice_is_refused_by_its_flag(name: str) -> None:
    with pytest.raises(ParamsError, match=rf"^{FLAGS[name].flag} must be one of .*, got 'outlines'"):
        Options.of(**{name: "outlines"})


def test_an_unknown_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(ParamsError, match="did you mean 'max_body'"):
        Options.of(max_bodi=5)


def test_settings_are_kept_in_their_own_types() -> None:
    options = Options.of(api_key=["a", "b"], media_root="x", request_timeout=5, port=0)
    assert (options.api_key, options.media_root, options.limits.request_timeout) == (("a", "b"), Path("x"), 5.0)
    assert Options.of(model="a/b/c").model_name == "c"
    assert Options.of(model="a/b/c", served_model_name="d").model_name == "d"


def test_a_limit_is_refused_with_the_flag_that_raises_it() -> None:
    check_limit(Limits(), "max_n", 128, "n")
    with pytest.raises(ParamsError, match=r"^n must be at most 128, got 129; the operator can raise it with --max-n$"):
        check_limit(Limits(), "max_n", 129, "n")


@pytest.mark.parametrize("name", [name for name, flag in FLAGS.items() if flag.kind is not bool])
def test_the_command_line_reads_every_setting_in_its_type(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flag, read = FLAGS[name], list[Options]()
    monkeypatch.setattr("tirage.server.run", lambda options: read.append(options) or 0)
    monkeypatch.setattr("tirage.cli.serve.end", sys.exit)
    value = flag.choices[0] if flag.choices else {str: "/a", Path: "/a"}.get(flag.kind, f"{flag.low or 1:g}")
    value = flag.form.partition("such as ")[2].partition(" ")[0].rstrip(",") if flag.pattern else value
    others = ["--api-key", "a"] if name == "key_weight" else []
    with pytest.raises(SystemExit) as exit_:
        main(["serve", *others, flag.flag, value])
    assert exit_.value.code == 0
    found = getattr(read[0].limits if name in LIMIT_FLAGS else read[0], name)
    assert found == ((flag.kind(value),) if flag.many else flag.kind(value))


def test_fastdeploys_variable_names_the_sampling_method() -> None:
    assert from_environment({}) == from_environment({"FD_SAMPLING_CLASS": " "}) == {}
    assert from_environment({"FD_SAMPLING_CLASS": "air"}) == {"sampling_method": "air"}
    with pytest.raises(ParamsError, match=r"FD_SAMPLING_CLASS must be one of base, .*, got 'airs'; did you mean 'air'"):
        from_environment({"FD_SAMPLING_CLASS": "airs"})


# --- plugins -----------------------------------------------------------------------------------------------------


class Shift:
    """A processor as a class, which declares its arguments."""

    arg_names = ("by",)

    def __call__(self, logits: np.ndarray, args: list[dict[str, float]]) -> np.ndarray:
        return logits + np.array([[each.get("by", 0.0)] for each in args], np.float32)


def test_processors_are_registered_under_the_operators_names() -> None:
    load_processors(Options.of(logits_processor=[f"shift={__name__}:Shift"]))
    found = find_processor("shift")
    assert found.arg_names == ("by",)
    assert found.fn(np.zeros((1, 2), np.float32), [{"by": 1.0}]).tolist() == [[1.0, 1.0]]
    unregister_processor("shift")


@pytest.mark.parametrize("text", ["shift", "=a:b", "shift=", "shift=a", "shift=:b", "shift=a:"])
def test_a_processor_without_a_name_or_a_place_is_refused(text: str) -> None:
    with pytest.raises(ParamsError, match="--logits-processor must be NAME=MODULE:OBJECT"):
        load_processors(Options.of(logits_processor=[text]))


@pytest.mark.parametrize("place", ["no_such_module:x", f"{__name__}:Missing", f"{__name__}:DEFAULTS"])
def test_a_processor_that_cannot_be_had_is_an_error_that_names_it(place: str) -> None:
    with pytest.raises(TirageError, match="'mine'"):
        load_processors(Options.of(logits_processor=[f"mine={place}"]))


def test_processors_of_installed_packages_are_there_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "mine-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n", encoding="utf-8")
    (package / "entry_points.txt").write_text(f"[tirage.processors]\nshifted = {__name__}:Shift\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    load_processors(Options())
    assert find_processor("shifted").arg_names == ("by",)
    unregister_processor("shifted")


def test_adapters_come_by_name() -> None:
    assert read_adapters(Options.of(lora=["a=x/y", "b=z=1"])) == {"a": "x/y", "b": "z=1"}
    with pytest.raises(ParamsError, match="got 'a' twice"):
        read_adapters(Options.of(lora=["a=x", "a=y"]))


# --- errors and log ----------------------------------------------------------------------------------------------


def test_a_failure_that_is_not_the_clients_tells_nothing_of_the_inside(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        refusal = of(RuntimeError("object at 0x7f001234abcd in some/folder"))
    assert refusal.status == 500
    assert "0x" not in refusal.message
    assert "folder" not in refusal.message
    assert "some/folder" in caplog.text


def test_an_error_of_a_parameter_names_its_field() -> None:
    refusal = of(ParamsError("top_p must be in (0, 1], got 0.0; use 1.0 to turn it off"))
    body = envelope(refusal)["error"]
    assert (refusal.status, body["param"], body["type"]) == (400, "top_p", "invalid_request_error")
    assert subject("stop[3] must be text") == "stop[3]"
    assert subject("number of logit_bias entries must be at most 3") == "logit_bias"
    assert subject("stop strings must be at most 32") == "stop"
    assert subject("n times the number of prompts must be at most 9") == "n"
    assert subject("messages were refused by the chat template: no") == "messages"
    assert subject("the queue is full") is None


def test_a_message_is_short_and_has_no_control_characters() -> None:
    assert clean("a\r\n\x1b[31m\u2028b") == "a\\r\\n\\x1b[31m\\u2028b"
    assert clean("<X at 0x7ffd12345678>") == "<X at 0x...>"
    assert len(clean("a" * 5000)) == 1000
    clean("\ud800").encode()


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("no_allowed_token", 400),
        ("grammar_failed", 400),
        ("non_finite_logits", 500),
        ("model_failed", 500),
        ("abort", 503),
    ],
)
def test_a_sample_that_failed_has_a_status(kind: str, status: int) -> None:
    assert of_stop(Stop(kind=kind, matched_text="why")).status == status  # type: ignore[arg-type]


def test_a_refusal_is_itself() -> None:
    refusal = Refusal(404, "no such model", param="model", code="model_not_found")
    assert of(refusal) is refusal
    assert envelope(refusal)["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("form", [PlainFormatter(), JsonFormatter()])
def test_a_record_of_the_log_is_one_line(form: logging.Formatter) -> None:
    record = logging.LogRecord(
        "tirage", logging.INFO, "", 0, "path %s", ("/a\r\nFAKE\x1b[0m\u2028\ud800" + "x" * 5000,), None
    )
    line = form.format(record)
    assert "\n" not in line
    assert "\x1b" not in line
    assert len(line) < 2200
    line.encode()


def test_escaping_keeps_ordinary_text() -> None:
    assert escape("héllo 日本") == "héllo 日本"


def test_the_page_on_serving_lists_every_flag_as_it_is() -> None:
    page = (Path(__file__).parents[1] / "docs" / "serving.md").read_text(encoding="utf-8")
    assert filled(page) == page
    assert f"| `--max-n` | 128 | {FLAGS['max_n'].help} |" in page
    with pytest.raises(ValueError, match="no table"):
        filled("a page")


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "cors_origin",
            ("*", "null", "https://example.org", "http://localhost:3000", "http://[::1]:81", "app://page-1"),
            ("example.org", "localhost:3000", "https://example.org/", "https://Example.org", "https://*.example.org",
             "https://example.org:443", "http://example.org:80", "https://a.org,https://b.org", ""),
        ),
        (
            "allowed_host",
            ("*", "models.example", "my_server", "10.0.0.7"),
            ("https://models.example", "models.example:8000", "*.example.org", "models.example.", ""),
        ),
        (
            "allowed_media_domain",
            ("example.org", "*.example.org"),
            ("*", "https://example.org", "example.org/images", "example.org:443", "*example.org", ""),
        ),
    ],
)  # fmt: skip
def test_a_name_that_could_match_nothing_is_refused(name: str, good: tuple[str, ...], bad: tuple[str, ...]) -> None:
    assert getattr(Options.of(**{name: good}), name) == good
    for each in bad:
        with pytest.raises(ParamsError, match=rf"^{FLAGS[name].flag} must be .* such as .*, got '{re.escape(each)}'$"):
            Options.of(**{name: (*good, each)})
