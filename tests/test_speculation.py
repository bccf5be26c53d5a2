"""Speculation changes no token: schedules of mixed requests with drafts and without, on models with equal logits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from repeating_model import SYMBOLS, Repeating

import tirage
from tirage import LLM, BeamSearchParams, Completion, GuidedDecodingParams, ModelError, ParamsError, SamplingParams
from tirage.backends.numpy import kernels
from tirage.engine.draft_probe import distance
from tirage.engine.drafts import AcceptanceRate, DraftState
from tirage.engine.prompt_lookup import Passage, PromptLookup, constant, look_up
from tirage.engine.single_row import SingleRow

PROMPTS = ("abc", "a", "xyzxyz", "The cat. The cat", "0101010101", "zzzz")
FEATURES: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.2},
    {"top_p": 0.8, "temperature": 0.5},
    {"top_k": 3, "min_p": 0.1, "logprobs": 2},
    {"frequency_penalty": 0.3, "presence_penalty": 0.2, "temperature": 0.4},
    {"n": 3, "temperature": 0.7},
    {"best_of": 4, "n": 2, "temperature": 0.6},
    {"stop": ["ab", "c."], "include_stop_str_in_output": True},
    {"stop": ["Q"], "min_tokens": 9, "temperature": 0.3},
    {"stop_pattern": "[0-9]{2}", "temperature": 0.5},
    {"stop_token_ids": [7, 8], "temperature": 0.2},
    {"bad_words": ["a", "xy", "TT"], "temperature": 0.3},
    {"no_repeat_ngram_size": 4, "temperature": 0.3},
    {"dry_multiplier": 0.8, "dry_allowed_length": 2, "temperature": 0.3},
    {"xtc_probability": 0.5, "xtc_threshold": 0.1, "temperature": 0.5},
    {"logit_bias": {3: 4.0, 5: -4.0}, "temperature": 0.4, "logprobs": 0},
    {"allowed_token_ids": range(0, 64, 3), "temperature": 0.5},
    {"semantics": "llamacpp", "top_k": 8, "temperature": 0.5, "dry_multiplier": 0.5},
    {"semantics": "hf", "repetition_penalty": 1.1, "temperature": 0.4},
    {"logits_processors": [("tests.favour", {})], "temperature": 0.3},
    {"typical_p": 0.8, "temperature": 0.6},
    {"prompt_logprobs": 1, "temperature": 0.3},
    {"detokenize": False, "temperature": 0.3},
)


class Favour:
    """A custom processor that reads the text: the id that is as large as the output is long is likelier."""

    wants_past = True

    def __call__(self, logits: Any, args: Sequence[dict[str, Any]]) -> Any:
        for row, each in zip(logits, args, strict=True):
            row[len(each["__req__"].output_ids) % 64] += 2.0
        return logits


tirage.register_processor("tests.favour", Favour(), replace=True)


def told(done: Completion) -> list[Any]:
    """All that an answer says, but for times."""
    return [
        (s.index, s.token_ids, s.text, s.finish_reason, s.stop, s.logprobs, s.cumulative_logprob, s.grammar_complete)
        for s in done.samples
    ] + [done.usage, done.prompt_logprobs]


def mixed(rng: np.random.Generator, features: Sequence[dict[str, Any]], count: int) -> list[tuple[str, SamplingParams]]:
    """Requests with features, prompts, seeds and lengths by chance."""
    found = []
    for _ in range(count):
        fields = features[int(rng.integers(len(features)))]
        length = int(rng.integers(1, 60))
        seed = int(rng.integers(1 << 40))
        fields = {**fields, "min_tokens": min(fields.get("min_tokens", 0), length)}
        found.append((PROMPTS[int(rng.integers(len(PROMPTS)))], SamplingParams(seed=seed, max_tokens=length, **fields)))
    return found


def any_config(rng: np.random.Generator) -> dict[str, Any]:
    fewest = int(rng.integers(1, 4))
    return {
        "num_speculative_tokens": int(rng.integers(1, 17)),
        "prompt_lookup_min": fewest,
        "prompt_lookup_max": fewest + int(rng.integers(0, 3)),
        "disable_by_batch_size": int(rng.integers(1, 9)),
    }


def speculating(rng: np.random.Generator, *, fails: int = 0) -> LLM:
    """An LLM with drafts by prompt lookup, a good draft model or a bad one; `fails` of its passes with drafts fail."""
    draft = (None, Repeating(), Repeating(key=1))[int(rng.integers(3))]
    config = any_config(rng)
    model = Repeating()
    llm = LLM(model, tokenizer=SYMBOLS, speculative_config=config, draft=draft, max_running=int(rng.integers(1, 9)))
    model.fails = fails
    return llm


def check_schedule(seed: int, plain: LLM) -> int:
    """One schedule: requests at once, some left before their end, a beam search; the number of accepted tokens."""
    rng = np.random.default_rng(seed)
    requests = mixed(rng, FEATURES, int(rng.integers(1, 7)))
    prompts, params = [each[0] for each in requests], [each[1] for each in requests]
    expected = [told(done) for done in plain.generate(prompts, params)]
    with speculating(rng, fails=int(rng.integers(0, 2)) * 2) as llm:
        left = [llm.stream(prompt, each) for prompt, each in mixed(rng, STREAMED, int(rng.integers(0, 3)))]
        for stream in left:
            next(iter(stream), None)
        search = (
            llm.beam_search_stream(prompts[0], BeamSearchParams(beam_width=3, max_tokens=12))
            if rng.integers(3) == 0
            else ()
        )
        for stream in left:
            stream.close()  # type: ignore[attr-defined]  # streams are generators
        assert [told(done) for done in llm.generate(prompts, params)] == expected, seed
        if search:
            assert [*search][-1].completion is not None
        return llm.engine.progress().accepted_tokens


STREAMED = [fields for fields in FEATURES if "best_of" not in fields]
BEAMS = BeamSearchParams(beam_width=3, max_tokens=12)


@pytest.fixture(scope="module")
def plain() -> LLM:
    return LLM(Repeating(), tokenizer=SYMBOLS)


@pytest.mark.slow
def test_mixed_schedules_give_the_same_answers(plain: LLM) -> None:
    assert sum(check_schedule(seed, plain) for seed in range(24)) > 500


@pytest.mark.exhaustive
def test_hundreds_of_mixed_schedules_give_the_same_answers(plain: LLM) -> None:
    assert sum(check_schedule(seed, plain) for seed in range(24, 624)) > 10_000


def test_a_cache_that_keeps_a_rejected_token_is_refused() -> None:
    with pytest.raises(ModelError, match="are those of single tokens, got logits that differ by"):
        LLM(Repeating(wrong=True), tokenizer=SYMBOLS, speculative_config={})


class Misplaced(Repeating):
    """A model that reads a draft as if each of its tokens came first."""

    def extend_each(self, token_ids: Sequence[int], cache: list[int]) -> Any:
        rows = super().extend_each(token_ids, cache)
        return np.repeat(rows[:1], len(rows), axis=0)


def test_a_model_that_reads_drafts_otherwise_than_tokens_is_refused() -> None:
    with pytest.raises(ModelError, match="leave speculation off, or mend extend_rows and truncate_row"):
        LLM(Misplaced(), tokenizer=SYMBOLS, speculative_config={})
    with pytest.raises(ModelError, match="reads drafts, but its pass failed: RuntimeError: planted"):
        LLM(Repeating(fails=1), tokenizer=SYMBOLS, speculative_config={})


def test_rounding_is_no_reason_to_refuse_a_model() -> None:
    logits = np.array([[4.0, -2.0, -np.inf]], np.float32)
    assert distance(logits, logits) == 0.0
    assert distance(logits + np.float32(0.1), logits) == pytest.approx(0.025)
    LLM(Rounded(), tokenizer=SYMBOLS, speculative_config={}).close()


class Rounded(Repeating):
    """A model whose passes of several tokens round otherwise, as those of bfloat16 do."""

    def extend_each(self, token_ids: Sequence[int], cache: list[int]) -> Any:
        rows = super().extend_each(token_ids, cache)
        return rows * np.float32(1.02) if len(rows) > 1 else rows


def test_a_cache_that_keeps_a_rejected_token_would_be_noticed(plain: LLM) -> None:
    model = Repeating()
    with LLM(model, tokenizer=SYMBOLS, speculative_config={"prompt_lookup_min": 1, "prompt_lookup_max": 1}) as llm:
        model.wrong = True
        params = SamplingParams(seed=1, temperature=0.8, max_tokens=60)
        assert told(llm.generate("abc", params)[0]) != told(plain.generate("abc", params)[0])


# --- constraints, on the bundled model, which reads drafts bit for bit as single tokens -------------------------------

SCHEMA = {
    "type": "array",
    "minItems": 2,
    "maxItems": 3,
    "items": {
        "type": "object",
        "properties": {"first_name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "maximum": 99}},
        "required": ["first_name", "age"],
        "additionalProperties": False,
    },
}
GUIDED: tuple[dict[str, Any], ...] = (
    {"guided_decoding": GuidedDecodingParams(json=SCHEMA)},
    {"guided_decoding": GuidedDecodingParams(json=SCHEMA), "forcing": "canonical"},
    {"guided_decoding": GuidedDecodingParams(json=SCHEMA), "close_grammar": True},
    {"guided_decoding": GuidedDecodingParams(regex="(the cat sat |the dog ran ){3,5}"), "repetition_penalty": 1.1},
    {"guided_decoding": GuidedDecodingParams(choice=["the cat sat on the cat", "the cat ran"]), "n": 2},
    {"guided_decoding": GuidedDecodingParams(grammar='root ::= ("ab " | "abc ")+'), "close_grammar": True},
    {
        "guided_decoding": GuidedDecodingParams(regex="(yes |no ){4}"),
        "reasoning_parser": "qwen3",
        "thinking_budget": 12,
    },
    {"reasoning_parser": "qwen3", "thinking_budget": 9, "temperature": 0.8},
    {"temperature": 0.6, "bad_words": ["the"]},
)
TALES = ("Once upon a time the cat sat. The cat sat. The cat", "<think>\nthe cat the cat the cat", "The list: ")


def check_constrained(seed: int, plain: LLM, speculating: Sequence[LLM]) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 4))
    fields = [GUIDED[int(rng.integers(len(GUIDED)))] for _ in range(count)]
    prompts = [TALES[int(rng.integers(len(TALES)))] for _ in range(count)]
    params = [SamplingParams(seed=seed * 10 + i, max_tokens=48, **each) for i, each in enumerate(fields)]
    expected = [told(done) for done in plain.generate(prompts, params)]
    for llm in speculating:
        assert [told(done) for done in llm.generate(prompts, params)] == expected, (seed, fields)


@pytest.fixture(scope="module")
def tiny() -> LLM:
    return LLM("tiny")


@pytest.fixture(scope="module")
def tiny_speculating() -> list[LLM]:
    lookup = {"prompt_lookup_min": 1, "num_speculative_tokens": 6}
    return [LLM("tiny", speculative_config=lookup), LLM("tiny", draft="tiny")]


@pytest.mark.slow
def test_constrained_texts_are_the_same(tiny: LLM, tiny_speculating: list[LLM]) -> None:
    for seed in range(3, 6):
        check_constrained(seed, tiny, tiny_speculating)
    assert all(llm.engine.progress().accepted_tokens > 30 for llm in tiny_speculating)


@pytest.mark.exhaustive
def test_many_constrained_texts_are_the_same(tiny: LLM, tiny_speculating: list[LLM]) -> None:
    for seed in [*range(3), *range(6, 100)]:
        check_constrained(seed, tiny, tiny_speculating)


# --- drafts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "most", "fewest", "found"),
    [
        ("abcabc", 3, 1, (3, 3)),
        ("abcabc", 2, 1, (3, 2)),
        ("abxab", 3, 2, (2, 2)),
        ("xbab", 3, 1, (2, 1)),
        ("abcd", 3, 1, (0, 0)),
        ("aaaa", 2, 1, (3, 2)),
        ("axbxcx", 2, 2, (0, 0)),
        ("a", 2, 1, (0, 0)),
        ("", 2, 1, (0, 0)),
        ("zabyabxab", 3, 2, (6, 2)),
    ],
)
def test_lookup_finds_the_longest_then_latest_ngram(text: str, most: int, fewest: int, found: tuple[int, int]) -> None:
    tokens = np.array([ord(letter) for letter in text], np.int32)
    assert look_up(tokens, most=most, fewest=fewest) == found


def test_lookup_agrees_with_a_search_by_hand() -> None:
    rng = np.random.default_rng(0)
    for _ in range(400):
        tokens = rng.integers(0, 3, int(rng.integers(0, 14)))
        most = int(rng.integers(1, 5))
        fewest = int(rng.integers(1, most + 1))
        by_hand = (0, 0)
        for n, end in itertools.product(range(fewest, most + 1), range(1, len(tokens))):
            if n <= end and tokens[end - n : end].tolist() == tokens[len(tokens) - n :].tolist():
                by_hand = end, n
        assert look_up(tokens.astype(np.int32), most=most, fewest=fewest) == by_hand


@pytest.mark.parametrize(
    ("text", "begins", "read", "expected"),
    [
        ("k=1;z k=1;", 0, 6, ("z k=1;", -1)),
        ("k=1;z k=2", 0, 6, (";z k=2", -2)),
        ("k=1;z k=234", 0, 6, (";z k=234", -3)),
        ("k=1;z k=234;", 0, 6, ("z k=234;", -1)),
        ("k=123;z k=4;", 0, 8, ("z k=4;", -1)),
        ("k=1;z ABCDEFGHI", 0, 6, None),
        ("ab", 1, 2, ("b", -1)),
        ("abb", 1, 2, ("b", -1)),
    ],
)
def test_a_passage_is_followed_over_values_that_differ(
    text: str, begins: int, read: int, expected: tuple[str, int] | None
) -> None:
    passage = Passage(begins, read)
    goes_on = [
        passage.follow(np.array([ord(letter) for letter in text[:end]], np.int32)) for end in range(read, len(text) + 1)
    ]
    assert goes_on[-1] == (expected is not None)
    if expected is not None:
        assert (text[passage.at :], passage.source) == expected


def test_tokens_that_the_passage_did_not_have_are_noted() -> None:
    text = "k=1;z k=2;z k="
    passage = Passage(0, 6)
    assert passage.follow(np.array([ord(letter) for letter in text], np.int32))
    assert passage.varied == {text.index("2")}


def test_a_passage_that_was_hardly_right_is_not_followed_past_another_token() -> None:
    tokens = np.array([ord(letter) for letter in "ab=1;b=2;"], np.int32)
    assert not Passage(2, 6, shared=1).follow(tokens)
    assert not Passage(2, 6, shared=1).follow(tokens[:8])
    assert Passage(2, 6, shared=2).follow(tokens)


@pytest.mark.parametrize(("at", "length", "expected"), [(5, 8, 4), (9, 3, 3), (10, 2, 2), (5, 4, 4), (12, 6, 6)])
def test_a_draft_ends_before_a_token_that_varied_unless_it_begins_there(at: int, length: int, expected: int) -> None:
    assert constant({9, 10}, at, length) == expected


def test_records_with_other_values_need_few_passes() -> None:
    text = "".join(f'{{"id": {i}, "name": "{name}"}}\n' for i, name in enumerate(("ann", "bob", "cy", "dora", "eve")))
    lookup = PromptLookup(most=4, fewest=1, cost=0.06)
    tokens, passes = [ord(letter) for letter in text], 0
    row: Any = type("Row", (), {"drafts": DraftState(), "sampling_row": SimpleNamespace(history=SimpleNamespace())})()
    at = 1
    while at < len(tokens):
        row.sampling_row.history.tokens = lambda at=at: np.array(tokens[:at], np.int32)
        [(draft, source)] = lookup.propose([(row, 8)])
        right = [ahead == token for ahead, token in zip(draft, tokens[at:], strict=False)]
        accepted = right.index(False) if False in right else len(right)
        row.drafts.rate(source).record(accepted, rejected=accepted < len(right))
        at, passes = at + accepted + 1, passes + 1
    # 22 passes write the first record, which repeats nothing; each of the other four has two new values.
    assert passes < 22 + 4 * 12
    assert passes < 0.6 * len(tokens)


def test_drafts_are_longer_where_the_model_reads_them_for_less() -> None:
    rate = AcceptanceRate(0.4)
    assert [rate.length(16, cost=cost) for cost in (0.06, 0.12, 0.25)] == [3, 2, 1]
    assert [AcceptanceRate(0.2).length(16, cost=cost) for cost in (0.06, 0.25)] == [2, 0]


def test_drafts_grow_while_they_hold_and_rest_while_they_do_not() -> None:
    rate = AcceptanceRate()
    first = rate.length(16)
    for _ in range(10):
        rate.record(4, rejected=False)
    assert rate.length(16) == 16 > first >= 1
    for _ in range(40):
        rate.record(0, rejected=True)
    lengths = [rate.length(16) for _ in range(400)]
    # Each trial that fails makes the next wait twice as long, up to eight times.
    assert [at for at, length in enumerate(lengths) if length] == [16, 49, 114, 243, 372]
    assert max(lengths) == 1
    assert rate.length(16) == 0
    rate.record(1, rejected=True)
    rate.rate = 0.0
    assert rate.length(16) == 1
    assert (AcceptanceRate(0.35).length(16), AcceptanceRate(0.35).length(1)) == (2, 1)


def test_progress_counts_drafts_their_tokens_and_those_accepted() -> None:
    with LLM(Repeating(), tokenizer=SYMBOLS, draft=Repeating()) as llm:
        llm.generate("abc", SamplingParams(seed=1, max_tokens=50))
        now = llm.engine.progress()
    assert 0 < now.drafts < now.accepted_tokens <= now.draft_tokens
    assert now.output_tokens == 50
    assert now.steps < 25


@pytest.fixture
def single_steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """What each step of a single row has returned, and how many tokens it has drawn."""
    assert kernels.wait()
    found: list[tuple[bool, int]] = []
    own = SingleRow.step

    def step(self: SingleRow) -> bool:
        before = len(self.sequence.sample.token_ids)
        done = own(self)
        found.append((done, len(self.sequence.sample.token_ids) - before))
        return done

    monkeypatch.setattr(SingleRow, "step", step)
    return found


@pytest.mark.parametrize("draft", [None, Repeating()])
def test_a_sample_alone_takes_steps_of_its_own_along_its_drafts(
    draft: Any, plain: LLM, single_steps: list[tuple[bool, int]]
) -> None:
    params = [SamplingParams(seed=seed, temperature=0.7, max_tokens=60, stop=["Qa"]) for seed in range(6)]
    expected = [told(plain.generate("abcabc", each)[0]) for each in params]
    single_steps.clear()
    with LLM(Repeating(), tokenizer=SYMBOLS, speculative_config={"prompt_lookup_max": 3}, draft=draft) as llm:
        assert [told(llm.generate("abcabc", each)[0]) for each in params] == expected
        now = llm.engine.progress()
    assert all(done for done, _ in single_steps)
    assert now.output_tokens == sum(len(each[0][1]) for each in expected)
    assert 0 < now.accepted_tokens <= now.output_tokens - now.steps
    assert sum(drawn for _, drawn in single_steps) > now.output_tokens / 2


def test_a_single_row_counts_as_steps_of_all_rows_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.wait()
    counts = []
    for patched in (False, True):
        with monkeypatch.context() as patch, LLM(Repeating(), tokenizer=SYMBOLS, speculative_config={}) as llm:
            if patched:
                patch.setattr(SingleRow, "of", lambda *_, **__: None)
            for seed in range(4):
                llm.generate("xyzxyz", SamplingParams(seed=seed, temperature=0.5, max_tokens=50))
            now = llm.engine.progress()
            drafts = (now.drafts, now.draft_tokens, now.accepted_tokens)
            counts.append((now.steps, now.output_tokens, sum(now.between.counts), drafts))
    assert counts[0] == counts[1]
    assert counts[0][3][2] > 20


def test_a_draw_that_fails_along_a_draft_is_repeated_by_a_step_of_all_rows(
    plain: LLM, monkeypatch: pytest.MonkeyPatch, single_steps: list[tuple[bool, int]]
) -> None:
    own = SingleRow._next
    calls = itertools.count()
    monkeypatch.setattr(SingleRow, "_next", lambda row: (-1, 0.0) if next(calls) % 5 == 4 else own(row))
    params = SamplingParams(temperature=0, max_tokens=60)
    with LLM(Repeating(), tokenizer=SYMBOLS, speculative_config={}) as llm:
        assert told(llm.generate("xyzxyz", params)[0]) == told(plain.generate("xyzxyz", params)[0])
    # Some failed behind a token of the same step.
    assert any(drawn for done, drawn in single_steps if not done)


def test_a_cache_that_takes_nothing_back_ends_the_sample_alone() -> None:
    class Stubborn(Repeating):
        stubborn = False

        def truncate(self, cache: list[int], count: int) -> None:
            if self.stubborn:
                raise RuntimeError("planted")
            super().truncate(cache, count)

    model = Stubborn()
    with LLM(model, tokenizer=SYMBOLS, draft=Repeating(key=1)) as llm:
        model.stubborn = True
        done = llm.generate("abc", SamplingParams(seed=1, max_tokens=50))[0]
        assert (done.finish_reason, done.samples[0].stop.matched_text) == ("error", "RuntimeError: planted")
        model.stubborn = False
        assert len(llm.generate("abc", SamplingParams(seed=1, max_tokens=5, ignore_eos=True))[0].token_ids) == 5


def test_there_are_no_drafts_where_many_samples_run() -> None:
    model = Repeating()
    with LLM(model, tokenizer=SYMBOLS, speculative_config={"disable_by_batch_size": 2}) as llm:
        probed = model.drafted
        llm.generate("abcabc", SamplingParams(seed=1, max_tokens=40, n=3, ignore_eos=True))
        assert model.drafted == probed
        llm.generate("abcabc", SamplingParams(seed=1, max_tokens=40, n=2, temperature=0))
        assert model.drafted > probed


def test_a_failed_pass_with_a_draft_is_repeated_without(plain: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=60)
    model = Repeating()
    with LLM(model, tokenizer=SYMBOLS, speculative_config={}) as llm:
        model.fails = 3
        assert told(llm.generate("xyzxyz", params)[0]) == told(plain.generate("xyzxyz", params)[0])
        assert model.fails == 0


class Broken(Repeating):
    """A draft model that fails after its prompt."""

    def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> Any:
        raise RuntimeError("planted")


def test_a_draft_model_that_fails_costs_its_drafts_alone(plain: LLM) -> None:
    params = SamplingParams(seed=4, max_tokens=30)
    with LLM(Repeating(), tokenizer=SYMBOLS, draft=Broken()) as llm:
        assert told(llm.generate("abc", params)[0]) == told(plain.generate("abc", params)[0])


def test_a_draft_model_with_a_shorter_context_stops_drafting(plain: LLM) -> None:
    params = SamplingParams(seed=4, max_tokens=60)
    with LLM(Repeating(), tokenizer=SYMBOLS, draft=Repeating(max_length=20)) as llm:
        assert told(llm.generate("abc", params)[0]) == told(plain.generate("abc", params)[0])
        assert 0 < llm.engine.progress().draft_tokens <= 20


def test_the_context_is_filled_to_its_last_token() -> None:
    answers = []
    for options in ({}, {"speculative_config": {"prompt_lookup_min": 1}}, {"draft": Repeating()}):
        with LLM(Repeating(max_length=50), tokenizer=SYMBOLS, **options) as llm:
            answers.append(told(llm.generate("abab", SamplingParams(temperature=0, max_tokens=None))[0]))
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0][4].kind == "context"


# --- refusals --------------------------------------------------------------------------------------------------------


class Bare:
    """A model that cannot take tokens back."""

    vocab_size, max_length = 64, 100
    prefill = decode = fork = score = None


def opened(**options: Any) -> Callable[[], LLM]:
    return lambda: LLM(options.pop("model", Repeating()), tokenizer=SYMBOLS, **options)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"speculative_config": {"method": "ngrm"}},
            ParamsError,
            "method must be 'ngram' or 'draft_model', got 'ngrm'",
        ),
        ({"speculative_config": {"tokens": 3}}, ParamsError, "must have known fields"),
        ({"speculative_config": "ngram"}, ParamsError, "must be a mapping of its fields, got str"),
        ({"speculative_config": {"num_speculative_tokens": 0}}, ParamsError, r"an integer in \[1, 32\], got 0"),
        ({"speculative_config": {"num_speculative_tokens": True}}, ParamsError, r"in \[1, 32\], got True"),
        ({"speculative_config": {"prompt_lookup_min": 9}}, ParamsError, "at most prompt_lookup_max, got 9 and 4"),
        ({"speculative_config": {"disable_by_batch_size": 0}}, ParamsError, "must be a positive integer, got 0"),
        ({"speculative_config": {"method": "draft_model"}}, ParamsError, "where a draft model is given and only there"),
        ({"speculative_config": {"method": "ngram"}, "draft": Repeating()}, ParamsError, "and only there"),
        (
            {"model": Repeating(max_length=8), "speculative_config": {}},
            ParamsError,
            "below the model's context of 8 tokens, got 8",
        ),
        ({"model": Bare(), "speculative_config": {}}, ModelError, "it has no extend_each"),
        ({"draft": Bare()}, ModelError, "a draft model that reads drafts"),
        ({"draft": 3}, ModelError, "draft must be a name, a folder"),
        ({"draft": type("Small", (Repeating,), {"vocab_size": 60})()}, ModelError, "vocabulary of 64 tokens, got 60"),
        ({"draft": "tiny"}, ModelError, "draft must have the model's vocabulary"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        opened(**options)()
