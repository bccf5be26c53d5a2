"""Constraints in the engine: with everything else a request can ask for, in any company, to a proper end."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from guided_cases import PERSON
from numpy.typing import NDArray
from small_llama import CONFIG, random_tensors, write_folder
from small_models import Script
from small_tokenizers import Letters, byte_level_tokenizer, fallback_tokenizer

from tirage import LLM, BeamSearchParams, Completion, GrammarError, GuidedDecodingParams, ParamsError, SamplingParams
from tirage.text import Stop
from tirage.text.text_start import start_of

EOS = 260
CLOSERS = [*b'"}]']
NUMBERS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 4}


class Noise:
    """Logits that depend on the tokens so far and on nothing else, and like what closes."""

    max_length = 400

    def __init__(self, vocab_size: int = 270, liked: Sequence[int] = (*CLOSERS, EOS)) -> None:
        self.vocab_size, self._liked = vocab_size, list(liked)

    def prefill(self, token_ids: Sequence[int]) -> tuple[NDArray[np.float32], list[int]]:
        return self._logits(list(token_ids)), list(token_ids)

    def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> NDArray[np.float32]:
        for cache, token in zip(caches, token_ids, strict=True):
            cache.append(token)
        return np.stack([self._logits(cache) for cache in caches])

    def fork(self, cache: list[int]) -> list[int]:
        return list(cache)

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        return np.stack([self._logits(list(token_ids[: i + 1])) for i in range(len(token_ids))])

    def _logits(self, tokens: list[int]) -> NDArray[np.float32]:
        logits = np.random.default_rng(tokens).normal(size=self.vocab_size) * 2
        logits[self._liked] += 3
        return logits.astype(np.float32)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(Noise(), tokenizer=byte_level_tokenizer(), generation_config={"eos_token_id": EOS})


def guided(**mode: Any) -> GuidedDecodingParams:
    return GuidedDecodingParams(**mode)


def write(llm: LLM, params: dict[str, Any], **mode: Any) -> Completion:
    asked = SamplingParams(**{"seed": 1, "max_tokens": 200, **params}, guided_decoding=guided(**mode))
    completion = llm.generate("p", asked)[0]
    parts = list(llm.stream("p", asked))
    assert "".join(part.text for part in parts if part.index == 0) == completion.text
    assert parts[-1].completion is not None
    assert parts[-1].completion.grammar_complete == completion.grammar_complete
    return completion


def is_person(text: str) -> bool:
    return jsonschema.Draft202012Validator(PERSON).is_valid(json.loads(text))


# --- with everything else ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"top_k": 5},
        {"top_p": 0.3},
        {"min_p": 0.4},
        {"typical_p": 0.5, "epsilon_cutoff": 1e-3},
        {"xtc_probability": 1.0, "xtc_threshold": 0.05},
        {"repetition_penalty": 1.5, "frequency_penalty": 1.0, "presence_penalty": -1.0},
        {"dry_multiplier": 2.0, "no_repeat_ngram_size": 9},
        {"logit_bias": {ord("x"): 50.0}},
        {"bad_words": ["z"]},
        {"min_tokens": 12},
        *({"semantics": name, "top_k": 20} for name in ("hf", "vllm", "sglang", "llamacpp", "fastdeploy-rejection")),
        {"semantics": "openai"},
        {"semantics": "llamacpp", "temperature": 0},
        {"semantics": "llamacpp", "temperature": 1.5, "top_k": 3, "min_p": 0.05},
    ],
    ids=str,
)  # fmt: skip
def test_texts_satisfy_their_schema_whatever_else_is_asked(llm: LLM, params: dict[str, Any]) -> None:
    for seed in range(3):
        completion = write(llm, params | {"seed": seed}, json=PERSON)
        assert completion.finish_reason == "stop", completion.stop
        assert is_person(completion.text)
        assert completion.grammar_complete is True


def test_every_sample_of_a_request_follows_the_constraint_by_itself(llm: LLM) -> None:
    completion = write(llm, {"n": 4}, json=PERSON)
    assert len({sample.text for sample in completion.samples}) == 4
    assert all(is_person(sample.text) and sample.grammar_complete for sample in completion.samples)
    asked = SamplingParams(best_of=3, seed=2, max_tokens=200, guided_decoding=guided(json=PERSON))
    assert is_person(llm.generate("p", asked)[0].text)


def test_a_row_does_not_notice_the_constraints_of_others(llm: LLM) -> None:
    asked = [
        SamplingParams(seed=1, max_tokens=30, guided_decoding=guided(json=PERSON)),
        SamplingParams(seed=2, max_tokens=30),
        SamplingParams(seed=3, max_tokens=30, guided_decoding=guided(regex=r"\d{3}-[a-f]+x")),
        SamplingParams(seed=4, max_tokens=30, guided_decoding=guided(choice=["yes", "no"]), semantics="llamacpp"),
        SamplingParams(seed=5, max_tokens=30, guided_decoding=guided(json=PERSON), close_grammar=True),
    ]
    together = llm.generate(["p"] * len(asked), asked)
    alone = [llm.generate("p", params)[0] for params in asked]
    assert [(c.token_ids, c.stop) for c in together] == [(c.token_ids, c.stop) for c in alone]
    free = llm.generate("p", asked[1])[0]
    assert (free.token_ids, free.grammar_complete) == (together[1].token_ids, None)


def test_raw_logprobs_are_the_models_own_and_sampled_ones_those_of_the_draw(llm: LLM) -> None:
    params = {"logprobs": 2, "temperature": 0, "max_tokens": 5}
    raw = write(llm, params, regex="[xyz]{4}")
    assert raw.logprobs is not None
    logits, _ = llm.model.prefill(raw.prompt_token_ids)
    expected = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    assert raw.logprobs[0].logprob == pytest.approx(expected[raw.token_ids[0]], abs=1e-4)
    assert raw.logprobs[0].top[0].logprob == pytest.approx(expected.max(), abs=1e-4)
    sampled = write(llm, {"logprobs": 5, "logprobs_mode": "sampled", "max_tokens": 5}, regex="[xyz]{4}")
    assert sampled.logprobs is not None
    assert {top.text for top in sampled.logprobs[0].top if top.logprob > -100} == {"x", "y", "z"}


def test_a_choice_ends_where_nothing_may_follow_and_otherwise_at_an_end_token(llm: LLM) -> None:
    assert write(llm, {}, choice=["left"]).stop == Stop(kind="grammar")
    one = write(llm, {"logit_bias": {EOS: 50.0}}, regex="a+")
    assert (one.text, one.stop) == ("a", Stop(kind="eos", matched=EOS, matched_text="<|end|>"))
    assert one.grammar_complete is True


def test_without_end_tokens_a_text_goes_on_as_long_as_it_may(llm: LLM) -> None:
    completion = write(llm, {"ignore_eos": True, "max_tokens": 20}, regex="a+")
    assert (completion.text, completion.finish_reason, completion.grammar_complete) == ("a" * 20, "length", True)
    assert write(llm, {"ignore_eos": True}, regex="a{7}").stop == Stop(kind="grammar")


def test_bad_words_and_a_constraint_hold_together(llm: LLM) -> None:
    free = [write(llm, {"seed": seed}, regex="[ab]{12}").text for seed in range(8)]
    assert any("aba" in text for text in free)
    banned = {"bad_words": ["aba"], "bad_words_level": "text"}
    texts = [write(llm, {"seed": seed, **banned}, regex="[ab]{12}").text for seed in range(8)]
    assert [text for text in texts if "aba" in text or not re.fullmatch("[ab]{12}", text)] == []
    nothing = write(llm, banned, choice=["aba"])
    assert (nothing.finish_reason, nothing.stop and nothing.stop.kind) == ("error", "no_allowed_token")


@pytest.mark.slow
def test_rows_of_a_torch_model_with_and_without_constraints_share_its_steps(tmp_path: Path) -> None:
    config = {**CONFIG, "vocab_size": 264, "max_position_embeddings": 256, "eos_token_id": 260, "bos_token_id": 1}
    folder = write_folder(tmp_path, random_tensors(config), **config)
    byte_level_tokenizer().raw.save(str(folder / "tokenizer.json"))
    asked = [
        SamplingParams(seed=seed, max_tokens=40, guided_decoding=mode, close_grammar=mode is not None)
        for seed, mode in enumerate([None, guided(json=NUMBERS), guided(regex="[a-f]{3,30}"), None])
    ]
    several = LLM(folder, backend="torch", max_running=4).generate(["p"] * 4, asked)
    lone = LLM(folder, backend="torch", max_running=1).generate(["p"] * 4, asked)
    assert [one.token_ids for one in several] == [one.token_ids for one in lone]
    assert [one.grammar_complete for one in several] == [None, True, True, None]


# --- beams -------------------------------------------------------------------------------------------------------


def beams(llm: LLM, params: dict[str, Any], sampling: dict[str, Any], **mode: Any) -> Completion:
    constrained = SamplingParams(**sampling, guided_decoding=guided(**mode))
    return llm.beam_search("p", BeamSearchParams(**params), sampling=constrained)[0]


@pytest.mark.parametrize("semantics", ["canonical", "hf"])
def test_a_search_finds_every_text_of_a_small_constraint_once(llm: LLM, semantics: str) -> None:
    sampling = {"semantics": semantics}
    found = beams(llm, {"beam_width": 6, "max_tokens": 9}, sampling, choice=["aa", "ab", "abc", "b"])
    assert sorted(sample.text for sample in found.samples) == ["aa", "ab", "abc", "b"]
    assert {sample.grammar_complete for sample in found.samples} == {True}
    assert [sample.score for sample in found.samples] == sorted((s.score for s in found.samples), reverse=True)


def test_every_hypothesis_satisfies_its_schema(llm: LLM) -> None:
    found = beams(llm, {"beam_width": 3, "max_tokens": 120}, {"logprobs": 2}, json=NUMBERS)
    assert len(found.samples) == 3
    for sample in found.samples:
        assert (sample.finish_reason, sample.grammar_complete) == ("stop", True)
        assert jsonschema.Draft202012Validator(NUMBERS).is_valid(json.loads(sample.text))
        assert [entry.token_id for entry in sample.logprobs or ()] == list(sample.token_ids)


@pytest.mark.parametrize("semantics", ["canonical", "hf"])
def test_hypotheses_close_in_time_when_told_to(semantics: str) -> None:
    talker = LLM(Noise(liked=[ord("x")]), tokenizer=byte_level_tokenizer(), generation_config={"eos_token_id": EOS})
    options = {"beam_width": 3, "max_tokens": 12}
    closed = beams(talker, options, {"close_grammar": True, "semantics": semantics}, regex='"[a-z]{1,40}"')
    cut = beams(talker, options, {"semantics": semantics}, regex='"[a-z]{1,40}"')
    assert False in [sample.grammar_complete for sample in cut.samples]
    assert [re.fullmatch('"[a-z]+"', sample.text) is not None for sample in closed.samples] == [True] * 3
    assert len({sample.token_ids for sample in closed.samples}) == 3


def test_a_search_that_leads_nowhere_ends_with_an_error(llm: LLM) -> None:
    found = beams(llm, {"beam_width": 2, "max_tokens": 4}, {"allowed_token_ids": [ord("x")]}, choice=["aa", "ab"])
    assert [(s.text, s.finish_reason, s.stop and s.stop.kind) for s in found.samples] == [
        ("", "error", "no_allowed_token")
    ]


def test_min_tokens_holds_the_end_back_and_fails_where_it_cannot(llm: LLM) -> None:
    assert len(write(llm, {"min_tokens": 9, "logit_bias": {EOS: 50.0}}, regex="a+").token_ids) == 10
    assert write(llm, {"min_tokens": 3}, choice=["yes"]).stop == Stop(kind="grammar")
    cut = write(llm, {"min_tokens": 8}, choice=["yes"])
    assert (cut.text, cut.finish_reason, cut.stop) == ("yes", "error", Stop(kind="no_allowed_token"))


def test_a_stop_that_cuts_the_text_short_leaves_it_incomplete(llm: LLM) -> None:
    cut = write(llm, {"stop": [":"]}, json=PERSON)
    assert (cut.finish_reason, cut.grammar_complete, cut.text) == ("stop", False, '{"name"' + cut.text[7:])
    whole = write(llm, {"stop": ["}"], "include_stop_str_in_output": True}, choice=["{a}"])
    assert (whole.text, whole.stop, whole.grammar_complete) == (
        "{a}",
        Stop(kind="string", matched="}", matched_text="}"),
        True,
    )
    without = write(llm, {"stop": ["}"]}, choice=["{a}"])
    assert (without.text, without.grammar_complete) == ("{a", False)
    token = write(llm, {"stop_token_ids": [ord("}")]}, choice=["{a}"])
    assert (token.text, token.grammar_complete) == ("{a", False)
    bare = write(llm, {"stop_token_ids": [ord("b")]}, regex="ab?")
    assert (bare.text, bare.grammar_complete) == ("a", True)


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
@pytest.mark.parametrize(
    ("stop", "include", "choice", "text", "complete"),
    [
        (" ", False, ["yes", "yes no"], "yes", True),
        (" ", True, ["yes", "yes no"], "yes ", False),
        ("es", False, ["yes no"], "y", False),
        ("n", True, ["yes no", "yes n"], "yes n", True),
    ],
)
def test_a_text_that_a_stop_cut_is_complete_where_the_rest_is_in_the_set(
    llm: LLM, backend: str, stop: str, include: bool, choice: list[str], text: str, complete: bool
) -> None:
    params = {"stop": [stop], "include_stop_str_in_output": include, "logit_bias": {ord(c): 40.0 for c in "yes n"}}
    cut = write(llm, params, choice=choice, backend=backend)
    assert (cut.text, cut.stop and cut.stop.matched, cut.grammar_complete) == (text, stop, complete)


@pytest.mark.slow
def test_the_spelling_of_an_end_token_counts_where_it_is_returned() -> None:
    tiny = LLM("tiny")
    told = SamplingParams(seed=1, max_tokens=20, include_stop_str_in_output=True, skip_special_tokens=False)
    for pattern, complete in (("[0-9]{2,5}", False), ("[0-9]{2,5}(</s>)?", True)):
        for fields in ({}, {"close_grammar": True}):
            asked = told.replace(guided_decoding=guided(regex=pattern), logit_bias={2: 30.0}, **fields)
            done = tiny.generate("Once", asked)[0]
            assert done.text.endswith("</s>")
            assert (done.stop and done.stop.kind, done.grammar_complete) == ("eos", complete)
        plain = tiny.generate("Once", told.replace(guided_decoding=guided(regex=pattern), skip_special_tokens=True))[0]
        assert plain.grammar_complete


def test_hidden_text_is_constrained_too(llm: LLM) -> None:
    completion = llm.generate(
        "p", SamplingParams(seed=3, detokenize=False, max_tokens=200, guided_decoding=guided(json=PERSON))
    )[0]
    assert completion.text == ""
    assert completion.grammar_complete is True
    assert is_person(llm.tokenizer.decode(completion.token_ids))


def test_a_reply_that_loses_its_first_space_is_constrained_as_it_is_shown() -> None:
    tokenizer = fallback_tokenizer()
    llm = LLM(Noise(269, liked=[2, 259, 260]), tokenizer=tokenizer, generation_config={"eos_token_id": 2})
    params = SamplingParams(max_tokens=60, guided_decoding=guided(regex="(a| a| |l)+"))
    for seed in range(6):
        reply = llm.chat([{"role": "user", "content": "l"}], params.replace(seed=seed))
        shown = reply.text
        assert re.fullmatch("(a| a| |l)+", shown)
        first, *rest = reply.token_ids
        spelled = [
            start_of(llm.tokenizer).written(llm.tokenizer, first),
            *(llm.tokenizer.token_bytes(i) for i in rest if i > 2),
        ]
        assert shown == b"".join(spelled).decode()
        text = llm.generate("l", params.replace(seed=seed))[0].text
        assert re.fullmatch("(a| a| |l)+", text)


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
def test_a_set_of_all_texts_changes_no_token_where_a_text_loses_a_space(backend: str) -> None:
    """The mask holds every token with which some text can go on: that of a word as well, which begins with a space."""
    with LLM("tiny") as llm:
        question = [{"role": "user", "content": "How old are you?"}]
        # Without single bytes, some of which begin no text.
        pieces = {i: llm.tokenizer.piece(i) for i in range(1536) if i not in llm.tokenizer.special_ids}
        plain = [i for i, piece in pieces.items() if isinstance(piece, str)]
        for seed in range(12):
            free = SamplingParams(seed=seed, max_tokens=8, ignore_eos=True, allowed_token_ids=plain)
            anything = free.replace(guided_decoding=guided(regex=r"(.|\n)*", backend=backend))
            assert llm.chat(question, anything).token_ids == llm.chat(question, free).token_ids
            assert llm.generate("", anything)[0].token_ids == llm.generate("", free)[0].token_ids


@pytest.mark.parametrize("forcing", [None, "canonical"])
@pytest.mark.parametrize("close", [False, True])
@pytest.mark.parametrize(
    "constraint",
    [{"choice": [" yes", " no"]}, {"regex": " ?yes"}, {"choice": ["  yes", "no"]}, {"json": PERSON}],
    ids=str,
)
def test_the_text_as_shown_is_in_the_set_where_it_loses_a_space(
    constraint: dict[str, Any], close: bool, forcing: str | None
) -> None:
    guided_decoding = GuidedDecodingParams(**constraint)
    with LLM("tiny") as llm:
        for seed in range(4):
            params = SamplingParams(
                seed=seed, max_tokens=120, close_grammar=close, forcing=forcing, guided_decoding=guided_decoding
            )
            [sample] = llm.chat([{"role": "user", "content": "hi"}], params).samples
            assert sample.grammar_complete
            if "json" in constraint:
                assert is_person(sample.text)
            else:
                assert re.fullmatch(constraint.get("regex") or "|".join(constraint["choice"]), sample.text)


def test_an_explanation_shows_the_constraint_at_the_start(llm: LLM) -> None:
    params = SamplingParams(seed=1, guided_decoding=guided(choice=["yes", "no"]))
    assert llm.explain("p", params).token_id in {ord("y"), ord("n")}


# --- ends --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("params", [{}, {"temperature": 0}, {"semantics": "llamacpp"}, {"top_p": 0.5}], ids=str)
def test_a_text_closes_within_its_tokens_when_it_is_told_to(llm: LLM, params: dict[str, Any]) -> None:
    forced = 0
    for seed in range(4):
        for limit in (22, 36):
            completion = write(llm, params | {"seed": seed, "max_tokens": limit, "close_grammar": True}, json=PERSON)
            assert completion.finish_reason == "stop", (seed, limit, completion.text)
            assert is_person(completion.text)
            assert len(completion.token_ids) <= limit
            assert completion.grammar_complete is True
            forced += completion.stop == Stop(kind="grammar", matched="close_grammar")
            free = write(llm, params | {"seed": seed, "max_tokens": limit}, json=PERSON)
            assert (completion.stop == Stop(kind="grammar", matched="close_grammar")) == (
                completion.token_ids != free.token_ids
            )
    assert forced > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 3},
        NUMBERS,
        {"$defs": {"t": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {
            "anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]}}, "required": ["v", "next"]}}, "$ref": "#/$defs/t"},
        {},
        {"type": "object"},
        {"type": "object", "properties": {"k": {"type": "array", "minItems": 2, "items": {"enum": ["red", "blue"]}}},
         "required": ["k"], "additionalProperties": False},
    ],
    ids=str,
)  # fmt: skip
def test_every_kind_of_schema_closes(schema: dict[str, Any]) -> None:
    llm = LLM(Noise(liked=[*b'{["a,']), tokenizer=byte_level_tokenizer(), generation_config={"eos_token_id": EOS})
    for seed in range(4):
        completion = write(llm, {"seed": seed, "max_tokens": 40, "close_grammar": True}, json=schema)
        assert completion.finish_reason == "stop", completion.text
        assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(completion.text))


def test_without_it_a_text_that_is_cut_says_so(llm: LLM) -> None:
    cut = write(llm, {"max_tokens": 10}, json=PERSON)
    assert (cut.finish_reason, cut.stop, cut.grammar_complete) == ("length", Stop(kind="max_tokens"), False)


def test_a_text_that_cannot_be_closed_in_time_runs_to_its_limit(llm: LLM) -> None:
    cut = write(llm, {"max_tokens": 10, "close_grammar": True}, json=PERSON)
    assert (cut.finish_reason, len(cut.token_ids), cut.grammar_complete) == ("length", 10, False)


def test_a_complete_text_is_not_led_astray_at_the_end(llm: LLM) -> None:
    for seed in range(6):
        params = {"seed": seed, "max_tokens": 6, "close_grammar": True, "logit_bias": {ord("b"): 4.0}}
        completion = write(llm, params, regex="a(b{12})?")
        assert (completion.text, completion.grammar_complete) == ("a", True)


def test_closing_does_without_tokens_that_are_forbidden(llm: LLM) -> None:
    params = {"max_tokens": 7, "close_grammar": True, "bad_words": ["0"], "logit_bias": {ord("1"): float("-inf")}}
    completion = write(llm, params | {"logit_bias": {ord("0"): float("-inf")}}, regex="[ab]{3,9}(0|z)")
    assert completion.finish_reason in {"stop", "length", "error"}
    assert "0" not in completion.text


def test_closing_changes_nothing_while_there_is_room(llm: LLM) -> None:
    free, closed = (
        write(llm, {"close_grammar": on, "max_tokens": 200, "seed": 4}, json=PERSON) for on in (False, True)
    )
    assert free.token_ids == closed.token_ids
    assert closed.stop == free.stop


def test_a_constraint_that_leads_nowhere_ends_its_row_alone(llm: LLM) -> None:
    asked = [
        SamplingParams(
            seed=1, max_tokens=60, logit_bias={97: 90.0}, guided_decoding=guided(regex="((a{1,1000}){1,1000}){1,1000}b")
        ),
        SamplingParams(seed=1, max_tokens=60, guided_decoding=guided(json=PERSON)),
    ]
    failed, other = llm.generate(["p", "p"], asked)
    assert failed.finish_reason == "error"
    assert failed.stop is not None
    assert failed.stop.kind == "grammar_failed"
    assert "too many" in str(failed.stop.matched_text)
    assert failed.grammar_complete is False
    assert other.token_ids == llm.generate("p", asked[1])[0].token_ids


def test_a_model_without_a_token_for_what_must_come_ends_with_an_error() -> None:
    class Silent(Noise):
        def _logits(self, tokens: list[int]) -> NDArray[np.float32]:
            logits = super()._logits(tokens)
            logits[[*b"yn"]] = -np.inf
            return logits

    llm = LLM(Silent(), tokenizer=byte_level_tokenizer())
    for semantics in ("canonical", "llamacpp"):
        completion = write(llm, {"semantics": semantics}, choice=["yes", "no"])
        assert (completion.finish_reason, completion.stop) == ("error", Stop(kind="no_allowed_token"))
        assert completion.token_ids == ()


def test_a_constraint_that_cannot_be_enforced_is_refused_before_anything_runs() -> None:
    model = Script("abc")
    llm = LLM(model, tokenizer=Letters())
    good, bad = SamplingParams(seed=1), SamplingParams(guided_decoding=guided(json={"not": {"uniqueItems": True}}))
    for call in (lambda: llm.generate(["a", "b"], [good, bad]), lambda: llm.stream("a", bad)):
        with pytest.raises(GrammarError, match="#/not/uniqueItems cannot be enforced inside of not"):
            call()
    with pytest.raises(ParamsError, match="close_grammar must go with guided_decoding"):
        llm.generate("a", SamplingParams(close_grammar=True))
    assert model.calls == []


def test_a_users_own_tokenizer_is_enough() -> None:
    completion = LLM(Script("yes, of course"), tokenizer=Letters()).generate(
        "p", SamplingParams(temperature=0, guided_decoding=guided(regex="[a-z, é]{3,8}"))
    )[0]
    assert (completion.text, completion.stop) == ("yes, of ", Stop(kind="grammar"))


@pytest.mark.slow
def test_the_bundled_model_writes_what_it_is_asked_for() -> None:
    llm = LLM("tiny")
    params = SamplingParams(seed=3, max_tokens=60, close_grammar=True, guided_decoding=guided(json=PERSON))
    assert is_person(llm.generate("Tell me about the fox: ", params)[0].text)
    reply = llm.chat(
        [{"role": "user", "content": "Yes or no?"}], params.replace(guided_decoding=guided(choice=["yes", "no"]))
    )
    assert reply.text in {"yes", "no"}


@pytest.mark.parametrize("mode", ["regex", "choice", "grammar", "json_object", "structural_tag"])
def test_every_mode_works_through_the_engine(llm: LLM, mode: str) -> None:
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<", "end": ">",
           "content": {"type": "json_schema", "json_schema": NUMBERS}}}  # fmt: skip
    modes: dict[str, tuple[Any, str]] = {
        "regex": (r"[ab]\d", r"[ab]\d"),
        "choice": (["up", "down"], "up|down"),
        "grammar": ('root ::= "(" root ")" | [xy]', r"\(*[xy]\)*"),
        "json_object": (True, r"(?s)\{.*\}"),
        "structural_tag": (json.dumps(tag), r"(?s)<\[.*\]>"),
    }
    value, pattern = modes[mode]
    completion = write(llm, {"close_grammar": True, "max_tokens": 40}, **{mode: value})
    assert re.fullmatch(pattern, completion.text)
    assert completion.grammar_complete is True
