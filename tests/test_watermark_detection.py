"""Detectors: p-values of texts without and with a watermark, bad input, and the command."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import tirage
from tirage import LLM, ParamsError, SamplingParams, Watermark
from tirage.cli import main
from tirage.watermarks import synthid, tails

STORIES = Path(
    os.environ.get("TIRAGE_TEST_MODELS", Path(__file__).resolve().parents[2] / "shared" / "models"), "stories260K"
)
needs_stories = pytest.mark.skipif(
    not STORIES.is_dir(), reason=f"needs the model folder {STORIES.name}; set TIRAGE_TEST_MODELS"
)
V = 512
KEYS = [654, 400, 836, 123, 340, 443, 597, 160, 57, 29, 590, 639, 13, 715, 468, 990, 966, 226, 324, 585]


def mark_of(name: str, key: int) -> Watermark:
    """The watermark of a scheme with a key made of a number."""
    rng = np.random.default_rng(key)
    if name == "synthid":
        return Watermark(scheme="synthid", key=rng.integers(0, 2**62, 20).tolist())
    if name == "gumbel":
        return Watermark(scheme="gumbel", key=int(rng.integers(0, 2**62)))
    own = {"seeding_scheme": "selfhash", "context_width": 3} if name == "selfhash" else {}
    return Watermark(scheme="kgw", key=int(rng.integers(1, 2**62)), **own)


def check_rates(p_values: list[float]) -> None:
    """No level is passed more often than its share of texts, but for chance (5 sigma)."""
    p = np.array(p_values)
    for level in (0.001, 0.01, 0.05, 0.2, 0.5):
        assert (p <= level).mean() <= level + 5 * np.sqrt(level / p.size), level


@pytest.mark.slow
@pytest.mark.parametrize(("name", "texts", "keys"), [("gumbel", 1500, 50), ("synthid", 1000, 20), ("kgw", 1000, 3)])
def test_random_tokens_pass_a_level_as_seldom_as_it_says(name: str, texts: int, keys: int) -> None:
    rng = np.random.default_rng(7)
    marks = [mark_of(name, key) for key in range(keys)]
    p = [
        tirage.detect(rng.integers(0, 60, int(rng.integers(20, 200))), marks[i % keys], vocab_size=V).p_value
        for i in range(texts)
    ]
    check_rates(p)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["gumbel", "kgw", "selfhash", "synthid"])
def test_many_random_texts_under_many_keys(name: str) -> None:
    rng = np.random.default_rng(8)
    texts = 1500 if name == "selfhash" else 6000
    marks = [mark_of(name, key) for key in range(30 if name != "selfhash" else 5)]
    check_rates([
        tirage.detect(rng.integers(0, V, 100), marks[i % len(marks)], vocab_size=V).p_value for i in range(texts)
    ])


@pytest.mark.parametrize(
    ("law", "total"), [(stats.binom(20, 0.5), 1120), (stats.binom(20, 0.5), 1250), (stats.binom(20, 0.5), 1600)]
)
def test_the_tail_of_a_sum_is_exact_where_it_is_tiny(law: Any, total: int) -> None:
    pmf = law.pmf(np.arange(21))
    assert tails.sum_tail(pmf, 100, total) == pytest.approx(stats.binom.sf(total - 1, 2000, 0.5), rel=1e-9)


def test_the_other_tails_are_those_of_their_laws() -> None:
    for hits, trials, p in ((60, 100, 0.25), (100, 100, 0.25), (0, 9, 0.5), (3, 4, 0.1), (900, 1000, 0.5)):
        assert tails.binomial_tail(hits, trials, p) == pytest.approx(stats.binom.sf(hits - 1, trials, p), rel=1e-9)
    for total, shape in ((300.0, 200), (5.0, 1), (1000.0, 200), (20.0, 200)):
        assert tails.gamma_tail(total, shape) == pytest.approx(stats.gamma.sf(total, shape), rel=1e-9)


def test_the_law_of_synthids_scores_is_counted_over_all_places() -> None:
    law = synthid.score_law(tuple(KEYS), 0, 1 << 16)
    table = synthid.g_table(0, 1 << 16)
    assert law.sum() == pytest.approx(1)
    assert np.arange(21) @ law == pytest.approx(20 * table.mean())


# --- texts of a model -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stories() -> LLM:
    return LLM(STORIES, backend="numpy")


def written(llm: LLM, asked: list[SamplingParams]) -> list[tuple[int, ...]]:
    prompts = ["Once upon a time", "The dog", "One day", "Lily and Tom"]
    done = llm.generate([prompts[i % 4] for i in range(len(asked))], asked, progress=False)
    return [completion.token_ids for completion in done]


@pytest.fixture(scope="module")
def unmarked(stories: LLM) -> list[tuple[int, ...]]:
    return written(stories, [SamplingParams(seed=seed, max_tokens=120, ignore_eos=True) for seed in range(48)])


@needs_stories
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gumbel", "kgw", "synthid"])
def test_texts_of_a_model_without_a_watermark_pass_no_more_often(unmarked: list[tuple[int, ...]], name: str) -> None:
    p = [tirage.detect(text, mark_of(name, key), vocab_size=V).p_value for key in range(12) for text in unmarked]
    check_rates(p)


POWER = [
    ("gumbel", 100, 1e-4),
    ("synthid", 200, 1e-2),
    ("kgw", 200, 1e-2),
    # It shuffles 40 times for a token.
    pytest.param("selfhash", 200, 1e-3, marks=pytest.mark.exhaustive),
]


@needs_stories
@pytest.mark.slow
@pytest.mark.parametrize(("name", "length", "least"), POWER)
def test_marked_texts_of_a_model_are_found(stories: LLM, name: str, length: int, least: float) -> None:
    """The median of eight keys; another key finds nothing."""
    marks = [mark_of(name, key) for key in range(8)]
    asked = [SamplingParams(seed=i, max_tokens=length, ignore_eos=True, watermark=mark) for i, mark in enumerate(marks)]
    texts = written(stories, asked)
    found = [tirage.detect(text, mark, vocab_size=V).p_value for text, mark in zip(texts, marks, strict=True)]
    assert np.median(found) < least, found
    others = [tirage.detect(text, mark_of(name, 1000 + i), vocab_size=V).p_value for i, text in enumerate(texts)]
    assert min(others) > 1e-4


# --- bad input ------------------------------------------------------------------------------------------------------

GUMBEL, KGW = Watermark(scheme="gumbel", key=3), Watermark(scheme="kgw", key=3)


@pytest.mark.parametrize(
    ("text", "mark", "options", "message"),
    [
        ([1, 2, 600], KGW, {"vocab_size": V}, r"token ids must lie in \[0, 512\), got 600; .*the model that wrote it"),
        ([1, -1], GUMBEL, {}, "token ids must lie in .*got -1"),
        ([1, 2, 3, 4], GUMBEL, {}, "text must have more than 4 tokens for a watermark of scheme 'gumbel', got 4"),
        ([1], KGW, {"vocab_size": V}, "text must have more than 1 tokens .*got 1"),
        ([1, 2], KGW, {}, "vocab_size must be the number of columns of the model's logits for 'kgw', got None"),
        ([1, 2], KGW, {"vocab_size": 0}, "vocab_size must be an integer >= 1, got 0"),
        ("a text", GUMBEL, {}, "text must come with the tokenizer that wrote it, got tokenizer None"),
        ([1.5], GUMBEL, {}, "flat sequence of integers"),
        ([1] * 9, {"scheme": "gumbel", "key": 3}, {}, "watermark must be a Watermark, got dict"),
        ([1] * 9, GUMBEL, {"fingerprint": "sha256:0"}, "fingerprint must come with a tokenizer"),
    ],
)
def test_bad_input_is_named(text: Any, mark: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        tirage.detect(text, mark, **options)


def test_the_text_of_another_tokenizer_is_named() -> None:
    llm = LLM("tiny")
    own = tirage.tokenizer_fingerprint(llm.tokenizer)
    assert own.startswith("sha256:")
    text = "Once upon a time there was a fox."
    assert tirage.detect(text, GUMBEL, tokenizer=llm.tokenizer, fingerprint=own).token_count > 5
    with pytest.raises(ParamsError, match="the one that wrote the text, whose fingerprint is 'sha256:1'"):
        tirage.detect(text, GUMBEL, tokenizer=llm.tokenizer, fingerprint="sha256:1")


# --- the command ----------------------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    found = capsys.readouterr()
    return int(ended.value.code or 0), found.out, found.err


def test_the_command_finds_the_watermark_of_a_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    llm = LLM("tiny")
    mark = Watermark(scheme="gumbel", key=0x1234_5678_9ABC)
    asked = SamplingParams(seed=1, max_tokens=120, temperature=1.5, ignore_eos=True, watermark=mark)
    done = llm.generate("Once upon a time", asked)[0]
    text, ids, key = tmp_path / "text.txt", tmp_path / "ids.json", tmp_path / "key"
    text.write_text(done.text, encoding="utf-8")
    ids.write_text(json.dumps(list(done.token_ids)), encoding="utf-8")
    key.write_text("0x123456789abc\n", encoding="utf-8")
    status, out, err = run(capsys, "detect", str(text), "--scheme", "gumbel", "--key", f"@{key}", "--model", "tiny")
    assert (status, "a watermark with this key" in err) == (0, True)
    assert float(out) < 0.01
    options = ("--scheme", "gumbel", "--key", "20015998343868", "--token-ids", "--json")
    status, out, _ = run(capsys, "detect", str(ids), *options)
    assert json.loads(out) == tirage.detect(done.token_ids, mark).to_dict()
    status, _, err = run(capsys, "detect", str(text), "--scheme", "gumbel", "--key", "5")
    assert (status, "TEXT_FILE of text must come with --model or --tokenizer, got neither" in err) == (2, True)
    status, _, err = run(capsys, "detect", str(ids), "--scheme", "gumbel", "--key", "5", "--token-ids")
    assert (status, "no watermark with this key was found" in err) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--scheme", "red", "--key", "5"), "scheme must be one of"),
        (("--scheme", "kgw", "--key", "a-secret"), "key must be an integer, or for synthid several with commas"),
        (("--scheme", "kgw", "--key", "1,2"), "key must be an integer in .* with scheme 'kgw', got a list of 2"),
        (("--scheme", "kgw", "--key", "1", "--options", "[]"), "--options must be a JSON object"),
        (("--scheme", "kgw", "--key", "1", "--threshold", "2"), "--threshold must be in (0, 1), got 2"),
        (("--scheme", "kgw", "--key", "@/nowhere/key"), "which cannot be read"),
        (("--scheme", "kgw", "--key", "1"), "--vocab-size must be given for kgw, or --model, got neither"),
        (("--scheme", "gumbel", "--key", "1", "--fingerprint", "a"), "--fingerprint must come with --model or --tok"),
    ],
)
def test_the_command_names_bad_options(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    file = tmp_path / "ids.json"
    file.write_text("[1, 2, 3]", encoding="utf-8")
    status, _, err = run(capsys, "detect", str(file), "--token-ids", *arguments)
    assert status == 2
    for part in message.split(".*"):
        assert part in err
    assert "a-secret" not in err
