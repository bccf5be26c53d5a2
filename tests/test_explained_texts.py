"""Explanations beyond one draw: under several parameters, of a whole text, as a figure, and on the command line."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import tirage
from tirage import LLM, ParamsError, Prompt, SamplingParams
from tirage.cli import app
from tirage.errors import TirageError
from tirage.params import GuidedDecodingParams
from tirage.tracing import Comparison

PROMPT = "Once upon a time there was a"
needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib; pip install 'tirage[plot]'"
)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny")


def run(*words: str) -> tuple[int, str]:
    """The status and the output of `tirage explain`."""
    result = CliRunner().invoke(app, ["explain", *words])
    return result.exit_code, result.output


# --- several parameters -----------------------------------------------------------------------------------------------


def test_a_comparison_holds_what_each_explanation_alone_says(llm: LLM) -> None:
    asked = [SamplingParams(seed=4, top_p=0.9, temperature=1.5, semantics=name) for name in ("sglang", "llamacpp")]
    compared = llm.compare(PROMPT, asked)
    for each, params in zip(compared.explanations, asked, strict=True):
        alone = llm.explain(PROMPT, params)
        assert (each.token_id, each.probability, each.semantics) == (alone.token_id, alone.probability, alone.semantics)
        assert {trace.token for trace in alone.tokens} <= {trace.token for trace in each.tokens}
    first, second = compared.explanations
    assert [trace.token for trace in first.tokens] == [trace.token for trace in second.tokens]
    # llama.cpp takes the nucleus before the temperature, SGLang after it.
    assert second.support_size < first.support_size


def test_parameters_without_a_seed_take_the_first_ones(llm: LLM) -> None:
    compared = llm.compare(PROMPT, [SamplingParams(), SamplingParams(), SamplingParams(seed=1)])
    seeds = [each.seed for each in compared.explanations]
    assert seeds[0] == seeds[1]
    assert seeds[2] == 1


def test_a_comparison_is_of_two_or_more_of_one_vocabulary(llm: LLM) -> None:
    with pytest.raises(ParamsError, match="params must hold two SamplingParams or more, got 1"):
        llm.compare(PROMPT, [SamplingParams()])
    small, large = (tirage.explain(np.zeros(size), SamplingParams(seed=1)) for size in (4, 5))
    with pytest.raises(ParamsError, match="of two explanations or more, of one vocabulary"):
        Comparison((small, large))


def test_the_views_of_a_comparison_name_what_removed_a_token() -> None:
    logits = np.array([3.0, 2.0, 0.0])
    found = [tirage.explain(logits, SamplingParams(seed=1, **options)) for options in ({"top_k": 1}, {"min_p": 0.1})]
    compared = Comparison(tuple(found))
    assert json.loads(json.dumps(compared.to_dict(), allow_nan=False))["agrees"] is compared.agrees
    page = compared.to_html()
    assert page.count("– (top_k)") == 2
    assert page.count("– (min_p)") == 1
    assert "<script" not in page


def test_tokens_that_are_asked_for_are_followed() -> None:
    logits = np.arange(50, dtype=np.float32)
    found = tirage.explain(logits, SamplingParams(seed=1, top_k=5), top=0, follow=[3, np.int64(7)])
    assert {3, 7} <= {trace.token.token_id for trace in found.tokens}
    assert found.trace_of(3).removed_by == "top_k"
    with pytest.raises(KeyError):
        found.trace_of(4)
    for bad in (50, -1, True, 1.0):
        with pytest.raises(ParamsError, match=r"follow must hold token ids in \[0, 50\)"):
            tirage.explain(logits, SamplingParams(), follow=[bad])


# --- whole texts ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_tokens_of_a_text_are_those_that_were_drawn(llm: LLM) -> None:
    params = SamplingParams(seed=5, top_p=0.9, max_tokens=12, repetition_penalty=1.2, frequency_penalty=0.3)
    drawn = llm.generate(PROMPT, params)[0]
    found = llm.explain_text(PROMPT, params)
    assert tuple(each.token.token_id for each in found.tokens) == drawn.token_ids
    assert all(each.drawn and each.removed_by is None for each in found.tokens)
    assert found.prompt == PROMPT


def test_surprise_and_rank_are_the_models(llm: LLM) -> None:
    params = SamplingParams(seed=5, top_k=20, max_tokens=8, logprobs=0)
    drawn = llm.generate(PROMPT, params)[0]
    assert drawn.samples[0].logprobs is not None
    found = llm.explain_text(PROMPT, params)
    for each, entry in zip(found.tokens, drawn.samples[0].logprobs, strict=True):
        assert each.surprise_bits == pytest.approx(-entry.logprob / math.log(2), abs=1e-3)
        assert each.rank == entry.rank
    assert found.bits_per_token == pytest.approx(np.mean([each.surprise_bits for each in found.tokens]))


def test_a_text_of_ones_own_shows_which_stage_would_have_removed_it(llm: LLM) -> None:
    ids = llm.tokenizer.encode(PROMPT + " cow")[len(llm.tokenizer.encode(PROMPT)) :]
    found = llm.explain_text(PROMPT, SamplingParams(seed=1, top_p=0.9), output_ids=ids)
    assert len(found.tokens) == len(ids) == 2
    assert (found.tokens[0].removed_by, found.tokens[0].probability) == ("top_p", 0.0)
    (stage,) = found.stages
    assert (stage.label, stage.removed_tokens) == ("top_p", sum(each.removed_by == "top_p" for each in found.tokens))
    page = found.to_html()
    assert page.count('class="h5 gone"') == 1
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["tokens"][0]["removed_by"] == "top_p"


def test_a_constrained_text_is_explained_to_its_end(llm: LLM) -> None:
    params = SamplingParams(seed=2, max_tokens=20, guided_decoding=GuidedDecodingParams(regex="(yes|no)!"))
    found = llm.explain_text(PROMPT, params)
    assert "".join(each.token.text or "" for each in found.tokens).strip() in {"yes!", "no!"}
    with pytest.raises(ParamsError, match="output_ids must leave a token to draw, got a text that ends: grammar"):
        llm.explain_text(PROMPT, params, output_ids=llm.tokenizer.encode("cow cow")[1:])


def test_a_text_without_tokens_is_explained_too(llm: LLM) -> None:
    found = llm.explain_text(PROMPT, SamplingParams(), output_ids=[])
    assert (found.tokens, found.stages) == ((), ())
    assert math.isnan(found.bits_per_token)
    assert "nothing was drawn" in found.to_html()


def test_markup_in_a_text_is_escaped(llm: LLM) -> None:
    bad = "<script>x</script>"
    found = llm.explain_text(f"A {bad}", SamplingParams(seed=1), output_ids=llm.tokenizer.encode(bad)[1:])
    assert "<script" not in found.to_html()
    assert "&lt;" in found.to_html()


@pytest.mark.slow
def test_of_several_samples_the_first_is_explained(llm: LLM) -> None:
    params = SamplingParams(seed=3, max_tokens=6, temperature=1.3)
    alone = llm.explain_text(PROMPT, params)
    assert all(each.drawn for each in alone.tokens)
    for more in ({"best_of": 4}, {"n": 3}, {"n": 2, "best_of": 4}):
        assert llm.explain_text(PROMPT, params.replace(**more)).to_dict() == alone.to_dict()


@pytest.mark.slow
def test_without_params_a_text_is_explained_under_the_models_own(llm: LLM) -> None:
    own = {"do_sample": True, "temperature": 0.2, "top_p": 0.5, "eos_token_id": 2}
    with LLM("tiny", generation_config=own) as chosen:
        found = chosen.explain_text(PROMPT)
        assert all(each.drawn for each in found.tokens)
        labels = [stage.label for stage in found.stages]
        assert labels == ["temperature", "top_p"]
        ids = [each.token.token_id for each in found.tokens]
        assert [stage.label for stage in chosen.explain_text(PROMPT, output_ids=ids).stages] == labels


def test_a_prompt_with_output_ids_is_explained_from_there_on(llm: LLM) -> None:
    params = SamplingParams(seed=5, max_tokens=8, frequency_penalty=0.7, temperature=1.2)
    drawn = llm.generate(PROMPT, params)[0].token_ids
    begun = Prompt(text=PROMPT, output_ids=drawn[:3])
    assert llm.explain(begun, params).token_id == drawn[3]
    assert [each.token_id for each in llm.compare(begun, [params, params]).explanations] == [drawn[3]] * 2
    for found in (llm.explain_text(begun, params), llm.explain_text(begun, params, output_ids=drawn[3:])):
        assert [(each.token.token_id, each.drawn) for each in found.tokens] == [(each, True) for each in drawn[3:]]
    with pytest.raises(ParamsError, match="position must be -1 for a prompt with images, audio, embeddings or output_"):
        llm.explain(begun, params, position=1)


# --- figures ----------------------------------------------------------------------------------------------------------


@needs_matplotlib
@pytest.mark.slow
def test_a_figure_has_a_bar_for_each_token_and_a_cross_for_each_that_was_removed(llm: LLM) -> None:
    found = llm.explain(PROMPT, SamplingParams(seed=4, top_k=5, temperature=0.7))
    figure = found.plot()
    law, stages = figure.axes
    assert [bar.get_width() for bar in law.containers[1]] == [trace.probability for trace in found.tokens]
    crosses = [line for line in stages.lines if line.get_marker() == "x"]
    assert len(crosses) == sum(trace.removed_by is not None for trace in found.tokens) > 0
    out = io.BytesIO()
    figure.savefig(out)
    assert out.getvalue().startswith(b"\x89PNG")


@needs_matplotlib
@pytest.mark.slow
def test_dollar_signs_in_tokens_are_no_mathematics() -> None:
    class Dollars:
        def encode(self, text: str) -> list[int]:
            return [0]

        def decode(self, ids: list[int]) -> str:
            return "".join("$\\frac$" for _ in ids)

    found = tirage.explain(np.zeros(3), SamplingParams(seed=1), tokenizer=Dollars())
    found.plot().savefig(io.BytesIO())


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(TirageError, match=r"a plot needs matplotlib; run: pip install 'tirage\[plot\]'"):
        tirage.explain(np.zeros(3), SamplingParams(seed=1)).plot()


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_compares_presets() -> None:
    code, out = run(PROMPT, "--top-p", "0.9", "--semantics", "sglang", "--compare", "hf", "--compare", "vllm", "--json")
    found = json.loads(out)["explanations"]
    assert code == 0
    assert [each["semantics"].partition("@")[0] for each in found] == ["sglang", "hf", "vllm"]
    assert len({each["seed"] for each in found}) == 1
    code, out = run(PROMPT, "--top-p", "0.9", "--compare", "hf", "--seed", "1")
    assert code == 0
    assert "All draw the same token" in out


def test_a_terminal_without_columns_has_eighty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    expected = run(PROMPT, "--seed", "5", "--top-k", "3")
    assert "top_k" in expected[1]
    # What some editors' shells and some CI systems say.
    monkeypatch.setenv("COLUMNS", "0")
    assert run(PROMPT, "--seed", "5", "--top-k", "3") == expected


@pytest.mark.slow
def test_the_command_explains_a_whole_text(tmp_path: Path) -> None:
    code, out = run(PROMPT, "--seed", "5", "--max-tokens", "4", "--every-token", "--json")
    assert (code, len(json.loads(out)["tokens"])) == (0, 4)
    page = tmp_path / "page.html"
    code, out = run(PROMPT, "--continuation", " cow", "--html", str(page))
    assert code == 0
    assert "2 tokens under canonical@1" in page.read_text(encoding="utf-8")
    code, out = run(PROMPT, "--continuation", " cow")
    assert "removed of the text" in out


@needs_matplotlib
@pytest.mark.slow
def test_the_command_writes_a_figure(tmp_path: Path) -> None:
    code, _ = run(PROMPT, "--seed", "5", "--plot", str(tmp_path / "draw.svg"))
    assert code == 0
    assert "<svg" in (tmp_path / "draw.svg").read_text(encoding="utf-8")


@needs_matplotlib
def test_the_command_writes_every_form_that_it_is_asked_for(tmp_path: Path) -> None:
    plot, page = tmp_path / "draw.SVG", tmp_path / "draw.html"
    asked = ["explain", PROMPT, "--seed", "5", "--top-k", "3", "--plot", str(plot), "--html", str(page), "--json"]
    result = CliRunner().invoke(app, asked)
    assert (result.exit_code, result.stderr) == (0, f"wrote {plot}\nwrote {page}\n")
    assert "token_id" in json.loads(result.stdout)
    assert "<svg" in plot.read_text(encoding="utf-8")
    assert "top_k" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--plot", "x.foo"], "--plot must be a PNG, SVG or PDF, got 'x.foo'; end its name in .png, .svg, .pdf"),
        (["--plot", "x"], "--plot must be a PNG, SVG or PDF, got 'x'; end its name in"),
        (["--plot", "x.svg", "--html", "x.svg"], "--plot and --html must be two files, got 'x.svg' for both"),
        (["--html", "no folder/x.html"], "--html must be in a folder that exists, got 'no folder/x.html'; make the"),
        (["--plot", "no folder/x.svg"], "--plot must be in a folder that exists, got 'no folder/x.svg'; make the"),
        (["--html", "."], "--html must be a file, got the folder '.'; give it a name"),
    ],
)
def test_a_file_that_cannot_be_written_as_asked_is_refused_before_a_model_is_opened(
    options: list[str], message: str
) -> None:
    result = CliRunner().invoke(app, ["explain", PROMPT, "--model", "no such model", *options])
    assert isinstance(result.exception, ParamsError)
    assert str(result.exception).startswith(message)


def test_the_command_refuses_a_figure_without_matplotlib_before_a_model_is_opened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    asked = ["explain", PROMPT, "--model", "no such model", "--plot", str(tmp_path / "draw.svg")]
    result = CliRunner().invoke(app, asked)
    assert str(result.exception) == "a plot needs matplotlib; run: pip install 'tirage[plot]'"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--compare", "hf", "--every-token"], "--compare must not go with --every-token or --continuation"),
        (["--every-token", "--position", "1"], "--every-token or --continuation must not go with --position"),
        (["--every-token", "--plot", "x.png"], "--plot must be of one draw, got --every-token or --continuation"),
        (["--stop", "."], "--stop must be left out with one draw; --every-token explains a text"),
        (["--compare", "hf", "--max-tokens", "3"], "--max-tokens must be left out with one draw"),
        (["--continuation", "n"], "--continuation must begin where a token of the prompt ends"),
        (["--compare", "hff"], "semantics must name a preset"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["explain", "Once upo", *options])
    assert result.exit_code != 0
    assert message in str(result.exception or result.output)
