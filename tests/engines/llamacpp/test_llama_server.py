"""`tirage.LLM` asks llama.cpp's own server: what it takes, what comes back, and what the same model says here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from gguf_models import STARTS, stories
from llama_server import LlamaServer

import tirage
from tirage import GuidedDecodingParams, ParamsError, SamplingParams
from tirage.errors import ModelError
from tirage.remote import REMOTE_DIALECTS
from tirage.remote.routes import fields_of
from tirage.semantics import PRESETS

pytestmark = pytest.mark.filterwarnings("ignore")
TALK = [{"role": "user", "content": "Tell me a story"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    # Its default for keys and values is float16, of which texts part from those in float32.
    made = LlamaServer(
        stories(), tmp_path_factory.mktemp("server"), "-np", "4", "-c", "2048", "-ctk", "f32", "-ctv", "f32"
    )
    yield made
    made.stop()


@pytest.fixture(scope="module")
def llm(server: LlamaServer) -> Iterator[Any]:
    with tirage.LLM(server.url, dialect="llamacpp", timeout_s=120) as opened:
        yield opened


@pytest.fixture(scope="module")
def here() -> Iterator[Any]:
    with tirage.LLM(stories(), dtype="float32") as opened:
        yield opened


def params(**given: Any) -> SamplingParams:
    return SamplingParams(**{"semantics": "llamacpp", "seed": 7, "max_tokens": 24, **given})


def test_greedy_texts_are_those_of_the_same_model_here(llm: Any, here: Any) -> None:
    given = params(temperature=0.0, stop=["."])
    for found, expected in zip(llm.generate(list(STARTS), given), here.generate(list(STARTS), given), strict=True):
        assert found.text == expected.text
        assert found.finish_reason == expected.finish_reason
        assert (found.stop.kind, found.stop.matched) == (expected.stop.kind, expected.stop.matched)
        assert found.usage.prompt_tokens == expected.usage.prompt_tokens


def test_logprobs_and_ids_are_those_of_the_same_model_here(llm: Any, here: Any) -> None:
    ids = here.tokenizer.encode("Once upon a time")
    given = params(temperature=0.0, logprobs=3)
    found, expected = llm.generate(ids, given)[0], here.generate(ids, given)[0]
    assert found.token_ids == expected.token_ids
    for one, other in zip(found.logprobs, expected.logprobs, strict=True):
        assert (one.token_id, one.bytes, one.rank) == (other.token_id, other.bytes, other.rank)
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert [each.token_id for each in one.top] == [each.token_id for each in other.top]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"temperature": 0.5, "top_k": 20, "top_p": 0.8, "min_p": 0.02, "typical_p": 0.9, "top_n_sigma": 1.5},
        {"semantics": PRESETS["llamacpp"].replace(name="llamacpp", penalty_window=None), "repetition_penalty": 1.3},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1},
        {"dry_multiplier": 0.8, "dry_base": 2.0, "dry_allowed_length": 3, "dry_sequence_breakers": ["x"]},
        {"xtc_probability": 0.5, "xtc_threshold": 0.2, "dynatemp_range": 0.3, "dynatemp_exponent": 2.0},
        {"logit_bias": {5: 1.5, 6: -float("inf")}, "ignore_eos": True, "n": 1},
        {"guided_decoding": GuidedDecodingParams(grammar='root ::= "yes" | "no"')},
    ],
)
def test_the_server_generates_with_what_was_asked_for(server: LlamaServer, given: dict[str, Any]) -> None:
    """Whatever it was started with: the settings that it reports are the fields that were sent."""
    route = REMOTE_DIALECTS["llamacpp"].prompts
    sent = fields_of(route, params(**given))
    told = server.settings({"prompt": "a", **route.fixed, **sent})
    for name in sent.keys() - {"n_predict", "n_cmpl", "n_probs", "logit_bias"}:
        assert told[name] == (pytest.approx(sent[name]) if isinstance(sent[name], float) else sent[name]), name
    assert told["samplers"] == [
        "penalties",
        "dry",
        "top_n_sigma",
        "top_k",
        "typ_p",
        "top_p",
        "min_p",
        "xtc",
        "temperature",
    ]
    assert len(told["logit_bias"]) >= len(given.get("logit_bias", {}))


def test_a_seed_gives_the_same_samples_again(llm: Any) -> None:
    given = params(n=3, temperature=1.2, logprobs=1)
    first, again = (llm.generate("Once upon a time", given)[0] for _ in range(2))
    assert [sample.text for sample in first.samples] == [sample.text for sample in again.samples]
    assert len({sample.text for sample in first.samples}) == 3
    free = llm.generate("Once upon a time", params(seed=None))[0]
    assert llm.generate("Once upon a time", params(seed=free.seed))[0].text == free.text


@pytest.mark.parametrize("count", [1, 3])
def test_a_stream_joins_to_the_whole_answer(llm: Any, count: int) -> None:
    given = params(n=count, temperature=0.9, stop=["."], logprobs=2)
    whole = llm.generate("One day", given)[0]
    deltas = list(llm.stream("One day", given))
    for sample in whole.samples:
        own = [delta for delta in deltas if delta.index == sample.index]
        assert "".join(delta.text for delta in own) == sample.text
        assert own[-1].finish_reason == sample.finish_reason
    last = deltas[-1].completion
    assert [each.text for each in last.samples] == [each.text for each in whole.samples]
    assert last.samples[0].stop == whole.samples[0].stop


def test_a_constraint_holds(llm: Any) -> None:
    for mode in ({"grammar": 'root ::= "yes" | "no" | "maybe"'}, {"json": {"enum": ["a", "b"]}}):
        text = llm.generate("Answer:", params(temperature=2.0, guided_decoding=GuidedDecodingParams(**mode)))[0].text
        assert text in {"yes", "no", "maybe", '"a"', '"b"'}
    with pytest.raises(
        ParamsError, match=r"guided_decoding must be another value for llama\.cpp, .* cannot express this one"
    ):
        llm.generate("a", params(guided_decoding=GuidedDecodingParams(regex="a+")))


def test_a_chat_answers_whole_and_streamed(llm: Any) -> None:
    given = params(temperature=0.7, logprobs=2)
    found = llm.chat(TALK, given)
    assert found.finish_reason == "length"
    assert [each.rank for each in found.logprobs].count(1) > 3
    assert all(each.token_id >= 0 for each in found.logprobs)
    assert "".join(each.text for each in found.logprobs).strip() == found.text.strip()
    deltas = list(llm.chat_stream(TALK, given))
    assert "".join(delta.text for delta in deltas) == found.text


def test_without_parameters_the_server_decides(llm: Any) -> None:
    found = llm.generate("Once upon a time")[0]
    assert found.usage.completion_tokens == 16
    assert llm.generate("Once upon a time", params(seed=found.seed, temperature=0.8, max_tokens=16))[0].text


def test_the_server_is_told_apart_and_its_refusals_are_named(server: LlamaServer, llm: Any) -> None:
    with tirage.LLM(server.url, dialect="vllm") as wrong, pytest.raises(ModelError, match="dialect must be 'llamacpp'"):
        wrong.generate("Once", SamplingParams())
    with pytest.raises(ParamsError, match="refuses the request"):
        llm.generate("Once", params(guided_decoding=GuidedDecodingParams(grammar="root ::= missing")))
    with tirage.LLM(server.url, dialect="openai") as plain:
        given = SamplingParams(semantics="openai", temperature=0.0, max_tokens=24)
        assert (
            plain.generate("Once upon a time", given)[0].text
            == llm.generate("Once upon a time", params(temperature=0.0))[0].text
        )


def test_leaving_a_stream_frees_the_slot(llm: Any) -> None:
    for _ in range(8):
        deltas = llm.stream("Once", params(max_tokens=10_000, ignore_eos=True))
        next(deltas)
        deltas.close()
    assert llm.generate("Once", params(max_tokens=4))[0].finish_reason == "length"
