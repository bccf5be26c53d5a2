"""Text that a constraint leaves no choice about: which tokens are forced, on every way to run a request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servers import shared
from small_llama import CONFIG, random_tensors, write_folder
from small_tokenizers import trained_byte_level

import tirage
from tirage import LLM, BeamSearchParams, GuidedDecodingParams, ParamsError, SamplingParams
from tirage.guided import Compiler, Vocabulary, forced_tokens

pytestmark = pytest.mark.slow

SCHEMA = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "land": {"enum": ["Greece", "Germany", "France"]},
    },
    "required": ["first_name", "age", "land"],
    "additionalProperties": False,
}
GUIDED = GuidedDecodingParams(json=SCHEMA, disable_any_whitespace=True)


@pytest.fixture(scope="module")
def tiny() -> LLM:
    return LLM("tiny")


def asked(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 120, "guided_decoding": GUIDED, "forcing": "canonical", **fields})


def vocabulary_of(*tokens: str) -> Vocabulary:
    """All bytes, and these tokens after them."""
    return Vocabulary((*(bytes([byte]) for byte in range(256)), *(token.encode() for token in tokens)))


def letters(text: str) -> list[int]:
    return [*text.encode()]


@pytest.mark.parametrize(
    ("regex", "tokens", "expected"),
    [
        # Nothing may follow: the whole text, in the fewest tokens where the tokenizer's do not spell it.
        ("abc", ("ab", "abc"), ["a", "b", "c"]),
        ("abc(def)?", ("ab",), ["a", "b", "c"]),
        ("(abc|abd)x", ("xy",), ["a", "b"]),
        # A longer token that also spells what follows is left to the draw.
        ("abc[xy]+", ("cx",), ["a", "b"]),
        ("abc[xy]+", ("bcx", "cz"), ["a"]),
        ("abc[xy]+", ("cz",), ["a", "b", "c"]),
        ("[xy]abc", (), []),
        ("a?b", (), []),
    ],
)
def test_tokens_are_forced_up_to_where_a_longer_one_could_go_on(
    regex: str, tokens: tuple[str, ...], expected: list[str]
) -> None:
    vocabulary = vocabulary_of(*tokens)
    matcher = Compiler(vocabulary).compile(GuidedDecodingParams(regex=regex)).matcher()
    found = forced_tokens(matcher, [], letters)
    assert [vocabulary.tokens[i].decode() for i in found] == expected
    assert all(matcher.accept(i) for i in found)


@pytest.mark.parametrize("backend", ["llguidance", pytest.param("xgrammar", marks=pytest.mark.exhaustive)])
def test_both_compilers_force_the_same(backend: str) -> None:
    tokenizer = trained_byte_level()
    vocabulary = Vocabulary.of(tokenizer, 421)
    guided = GuidedDecodingParams(json=SCHEMA, disable_any_whitespace=True, backend=backend, disable_fallback=True)
    if backend == "xgrammar":
        plain = {**SCHEMA, "properties": {"first_name": {"type": "string"}, "land": {"enum": ["Greece", "France"]}}}
        guided = guided.replace(json={**plain, "required": ["first_name", "land"]})
    matcher = Compiler(vocabulary).compile(guided).matcher()
    found = forced_tokens(matcher, [], tokenizer.encode_plain)
    text = b"".join(vocabulary.tokens[i] for i in found)
    assert text
    assert b'{"first_name":"'.startswith(text)


@pytest.mark.parametrize(
    ("choice", "expected"), [(("🎉", "🎊"), ""), (("ab🎉", "ab🎊x"), "ab"), (("x é1", "x è1", "x é2"), "x ")]
)
@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
def test_no_compiler_forces_part_of_a_character(backend: str, choice: tuple[str, ...], expected: str) -> None:
    vocabulary = vocabulary_of()
    guided = GuidedDecodingParams(choice=choice, backend=backend, disable_fallback=True)
    matcher = Compiler(vocabulary).compile(guided).matcher()
    found = forced_tokens(matcher, [], letters)
    assert b"".join(vocabulary.tokens[i] for i in found).decode() == expected


def test_forced_text_is_cut_as_the_tokenizer_cuts_it_after_what_stands() -> None:
    tokenizer = trained_byte_level()
    vocabulary = Vocabulary.of(tokenizer, 421)
    text = "the fox and the story of the fox"
    matcher = Compiler(vocabulary).compile(GuidedDecodingParams(regex=f"(T|t){text}")).matcher()
    first = vocabulary.cover(b"t")
    assert first is not None
    assert matcher.accept(first[0])
    found = forced_tokens(matcher, first, tokenizer.encode_plain)
    assert b"".join(vocabulary.tokens[i] for i in found).decode() == text
    assert found == tokenizer.encode_plain(f"t{text}")[-len(found) :]
    assert found != vocabulary.cover(text.encode()) or len(found) < len(text)


def test_the_tokens_are_the_same_alone_in_company_and_streamed(tiny: LLM) -> None:
    params = [asked(seed=seed) for seed in range(5)]
    together = tiny.generate(["The fox: "] * 5, params)
    for each, reply in zip(params, together, strict=True):
        [sample] = reply.samples
        assert 0 < sample.forced_tokens < len(sample.token_ids)
        assert set(json.loads(reply.text)) == {"first_name", "age", "land"}
        assert sample.grammar_complete
        assert tiny.generate("The fox: ", each)[0].token_ids == reply.token_ids
        assert "".join(delta.text for delta in tiny.stream("The fox: ", each)) == reply.text
        assert reply.usage.completion_tokens == len(reply.token_ids)


def test_what_is_drawn_is_drawn_at_its_own_step(tiny: LLM) -> None:
    """A request whose constraint allows the forced tokens alone as they are draws the same after them."""
    guided = GuidedDecodingParams(regex="The fox was [a-z]{3,9}")
    [reply] = tiny.generate("A story. ", asked(seed=4, guided_decoding=guided, max_tokens=20))
    count = next(i for i in range(20) if len(tiny.tokenizer.decode(reply.token_ids[: i + 1]).strip()) > 11)
    logits = tiny.engine.next_logits([*reply.prompt_token_ids, *reply.token_ids[:count]])
    mask = tiny.request("A story. ", asked(seed=4, guided_decoding=guided)).samples[0]
    for token in reply.token_ids[:count]:
        mask.accept(token, 0.0)
    drawn = tirage.sample(
        logits[None],
        SamplingParams(seed=4),
        history=[(reply.prompt_token_ids, reply.token_ids[:count])],
        mask=mask.mask(tiny.model.vocab_size)[None],  # type: ignore[index]  # there is a constraint
    )
    assert int(drawn.token_ids[0]) == reply.token_ids[count]


def test_a_text_may_be_forced_as_a_whole(tiny: LLM) -> None:
    guided = GuidedDecodingParams(choice=["only this text"])
    before = tiny.engine.progress().output_tokens
    [reply] = tiny.generate("x", asked(guided_decoding=guided, n=2))
    assert tiny.engine.progress().output_tokens - before == reply.usage.completion_tokens
    for sample in reply.samples:
        assert sample.text == "only this text"
        assert sample.forced_tokens == len(sample.token_ids)
        assert sample.stop is not None
        assert sample.stop.kind == "grammar"
        assert sample.cumulative_logprob == 0.0


def test_limits_and_stops_hold_in_forced_text(tiny: LLM) -> None:
    guided = GuidedDecodingParams(choice=["only this text"])
    [cut] = tiny.generate("x", asked(guided_decoding=guided, max_tokens=2))
    assert (len(cut.token_ids), cut.finish_reason, cut.samples[0].grammar_complete) == (2, "length", False)
    [stopped] = tiny.generate("x", asked(guided_decoding=guided, stop=["this"]))
    assert stopped.text == "only "
    banned = asked(guided_decoding=guided, allowed_token_ids=[5])
    assert tiny.generate("x", banned)[0].finish_reason == "error"


def test_forced_tokens_are_listed_as_certain(tiny: LLM) -> None:
    [reply] = tiny.generate("The fox: ", asked(seed=2, logprobs=2))
    assert reply.logprobs is not None
    assert [entry.token_id for entry in reply.logprobs] == list(reply.token_ids)
    certain = [entry for entry in reply.logprobs if entry.logprob == 0.0 and not entry.top]
    assert len(certain) == reply.samples[0].forced_tokens
    text = bytes(byte for entry in reply.logprobs for byte in entry.bytes).decode()
    assert text.strip() == reply.text
    [silent] = tiny.generate("The fox: ", asked(seed=2))
    assert silent.token_ids == reply.token_ids


def test_nothing_is_forced_in_the_reasoning(tiny: LLM) -> None:
    params = asked(seed=1, reasoning_parser="think", thinking_budget=4)
    [reply] = tiny.generate("The fox: <think>", params)
    thought, _, answer = reply.text.partition("</think>")
    assert thought
    assert set(json.loads(answer)) == {"first_name", "age", "land"}
    assert reply.samples[0].forced_tokens > 10


def test_a_text_closes_in_time(tiny: LLM) -> None:
    for seed in range(4):
        [reply] = tiny.generate("The fox: ", asked(seed=seed, close_grammar=True, max_tokens=46))
        assert json.loads(reply.text)
        assert len(reply.token_ids) <= 46


def test_what_cannot_be_forced_is_refused_by_name(tiny: LLM) -> None:
    with pytest.raises(ParamsError, match="forcing must go with guided_decoding"):
        tiny.generate("x", SamplingParams(forcing="canonical"))
    with pytest.raises(ParamsError, match="forcing must be None with logits_processors"):
        asked(logits_processors=[("forced_token", {"token_id": 3})])
    with pytest.raises(ParamsError, match="forcing must keep its default None in a beam search"):
        tiny.beam_search("x", BeamSearchParams(beam_width=2, max_tokens=9), sampling=asked(max_tokens=16))
    with pytest.raises(ParamsError, match="forcing must be None where hidden states are returned"):
        tiny.generate("x", asked(), return_hidden_states=True)
    with pytest.raises(ParamsError, match="forcing must be one of"):
        SamplingParams(forcing="jump")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a byte-level tokenizer of 421 tokens."""
    path = tmp_path_factory.mktemp("forcing")
    write_folder(path, random_tensors({**CONFIG, "vocab_size": 421}), vocab_size=421)
    trained_byte_level().raw.save(str(path / "tokenizer.json"))
    return path


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_every_backend_forces_the_same_tokens(folder: Path, backend: str) -> None:
    guided = GuidedDecodingParams(regex="the story of the fox (was|is) (red|green), and no other!")
    params = [asked(seed=seed, guided_decoding=guided, temperature=0.7) for seed in range(4)]
    with LLM(folder, backend="numpy") as reference, LLM(folder, backend=backend) as llm:
        expected = reference.generate(["once upon a time"] * 4, params)
        found = llm.generate(["once upon a time"] * 4, params)
        assert [reply.token_ids for reply in found] == [reply.token_ids for reply in expected]
        assert [reply.samples[0].forced_tokens for reply in found] == [
            reply.samples[0].forced_tokens for reply in expected
        ]
        alone = [llm.generate("once upon a time", each)[0].token_ids for each in params]
        assert alone == [reply.token_ids for reply in found]
    assert all(reply.samples[0].forced_tokens > len(reply.token_ids) / 2 for reply in found)


def test_reading_several_tokens_gives_the_logits_of_reading_them_one_by_one(folder: Path) -> None:
    for backend in ("numpy", "torch"):
        with LLM(folder, backend=backend) as llm:
            model: Any = llm.engine.model
            one, several = (model.prefill([1, 50, 60])[1] for _ in range(2))
            for token in (70, 80, 90):
                logits = model.decode([token], [one])
            joined = model.extend_row(several, [70, 80, 90])
            np.testing.assert_allclose(joined, logits, atol=1e-4)
            np.testing.assert_allclose(model.decode([99], [several]), model.decode([99], [one]), atol=1e-4)


def test_an_aborted_request_frees_its_place(tiny: LLM) -> None:
    stream = tiny.stream("The fox: ", asked(seed=1))
    next(iter(stream))
    del stream
    assert tiny.generate("The fox: ", asked(seed=1))[0].samples[0].grammar_complete


def test_an_answer_says_how_many_tokens_were_forced() -> None:
    sampling = {"json_schema": json.dumps(SCHEMA), "forcing": "canonical", "max_new_tokens": 120, "sampling_seed": 1}
    answer = shared().post("/generate", {"text": "The fox: ", "sampling_params": sampling}).json()
    assert answer["meta_info"]["forced_tokens"] > 5
    body = {"prompt": "The fox: ", "guided_json": SCHEMA, "forcing": "canonical", "max_tokens": 120, "seed": 1}
    found = shared().post("/v1/completions", body).json()
    assert found["usage"]["completion_tokens_details"] == {"forced_tokens": answer["meta_info"]["forced_tokens"]}
