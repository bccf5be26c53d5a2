"""Constraints that hold after the reasoning, and its budget: with tags that are tokens and with tags that are text."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE

import tirage
from tirage import LLM, BeamSearchParams, GuidedDecodingParams, ParamsError, SamplingParams
from tirage.engine import ReasoningState, ReasoningTokens
from tirage.guided.matcher import only_bit

pytestmark = pytest.mark.slow

TAGS = ("<think>", "</think>")
CHOICES = ["12", "1x", "<t", "x 1"]
LONGER = [
    "th",
    "ink",
    "</",
    "ink>",
    "ink>1",
    "ink>y",
    ">",
    ">1",
    ">x",
    "</think>12",
    "a</think>1",
    " <",
    "<think>a",
    "12",
    "no",
]


def tokenizer_of(*, special: bool) -> FastTokenizer:
    """Bytes and longer tokens that cross the tags, which are special tokens themselves if `special`."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    space = {" ": "Ġ", "\n": "Ċ"}
    words = [*sorted(letters), *("".join(space.get(c, c) for c in word) for word in LONGER if word not in letters)]
    raw = FastTokenizer(BPE({word: i for i, word in enumerate(words)}, []))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    raw.add_special_tokens([AddedToken("<eos>", special=True)])
    if special:
        raw.add_tokens([AddedToken(TAGS[0], special=False), AddedToken(TAGS[1], special=True)])
    return raw


class Noise:
    """Logits that depend on all tokens so far and on nothing else; what belongs to tags is likelier."""

    def __init__(self, raw: FastTokenizer) -> None:
        self.vocab_size, self.max_length = raw.get_vocab_size(), 400
        words = [raw.id_to_token(i) or "" for i in range(self.vocab_size)]
        self._bias = np.array([3.0 if set(word) & set("</>12x") else 0.0 for word in words], np.float32)

    def prefill(self, token_ids: Sequence[int]) -> tuple[NDArray[np.float32], list[int]]:
        return self._logits(token_ids), [*token_ids]

    def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> NDArray[np.float32]:
        for token, cache in zip(token_ids, caches, strict=True):
            cache.append(token)
        return np.stack([self._logits(cache) for cache in caches])

    def fork(self, cache: list[int]) -> list[int]:
        return [*cache]

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        return np.zeros((len(token_ids), self.vocab_size), np.float32)

    def _logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        seed = zlib.crc32(np.array(ids, np.int32).tobytes())
        return self._bias + np.random.default_rng(seed).normal(size=self.vocab_size).astype(np.float32)


@pytest.fixture(scope="module", params=["text", "tokens"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    raw = tokenizer_of(special=request.param == "tokens")
    config = {"eos_token_id": raw.token_to_id("<eos>")}
    with LLM(Noise(raw), tokenizer=raw, generation_config=config, reasoning_parser="qwen3") as found:
        yield found


def asked(**fields: Any) -> SamplingParams:
    guided = GuidedDecodingParams(choice=CHOICES)
    return SamplingParams(**{"guided_decoding": guided, "max_tokens": 40, "skip_special_tokens": False, **fields})


def answer_of(text: str, *, opened: bool) -> str | None:
    """The answer in a text; None while it is in its reasoning."""
    bare = text if opened else text.lstrip(" \n\t\r")
    if not opened and not bare.startswith(TAGS[0]):
        return text
    _, tag, answer = bare.removeprefix("" if opened else TAGS[0]).partition(TAGS[1])
    return answer if tag else None


def may_go_on(text: str, *, opened: bool) -> bool:
    """Whether some text that begins so is right: reasoning, if any, and then one of the choices."""
    answer, bare = answer_of(text, opened=opened), text.lstrip(" \n\t\r")
    if answer is None or any(choice.startswith(answer) for choice in CHOICES):
        return True
    return not opened and TAGS[0].startswith(bare) and len(text) - len(bare) <= 8


@pytest.mark.parametrize("prompt", ["go<think>", "go"])
def test_a_mask_holds_every_token_that_can_go_on_and_no_other(llm: LLM, prompt: str) -> None:
    opened, tokens, checked = prompt != "go", range(llm.model.vocab_size), 0
    for seed in range(12):
        request = llm.request(prompt, asked(seed=seed))
        sample, rng = request.samples[0], np.random.default_rng(seed)
        ids: list[int] = []
        while sample.stop is None and len(ids) < 20:
            mask = sample.mask(llm.model.vocab_size)
            assert mask is not None
            allowed = {i for i in tokens if mask[i // 32] >> (i % 32) & 1}
            texts = {i: llm.tokenizer.decode([*ids, i], skip_special_tokens=False) for i in tokens}
            before = llm.tokenizer.decode(ids, skip_special_tokens=False)
            right = {i for i, text in texts.items() if "\ufffd" not in text and may_go_on(text, opened=opened)}
            right -= {*request.params.eos_token_ids}
            if answer_of(before, opened=opened) in CHOICES:
                right |= {*request.params.eos_token_ids}
            whole = {i for i in allowed if "\ufffd" not in texts[i]}
            assert whole == right, (before, [texts[i] for i in whole ^ right])
            likely = [i for i in sorted(right) if set(texts[i][len(before) :]) & set("</>12xthink")] or sorted(right)
            ids.append(int(rng.choice(likely)))
            sample.accept(ids[-1], 0.0)
            checked += answer_of(before, opened=opened) is not None
    assert checked > 3


@pytest.mark.parametrize("prompt", ["go<think>", "go"])
@pytest.mark.parametrize("more", [{}, {"thinking_budget": 3}, {"close_grammar": True}, {"n": 3, "thinking_budget": 6}])
def test_every_answer_keeps_its_constraint(llm: LLM, prompt: str, more: dict[str, Any]) -> None:
    complete = 0
    for seed in range(8):
        [reply] = llm.generate(prompt, asked(seed=seed, **more))
        for sample in reply.samples:
            answer = answer_of(sample.text, opened=prompt != "go")
            assert sample.grammar_complete is (answer in CHOICES)
            assert sample.finish_reason == ("stop" if sample.grammar_complete else "length")
            complete += bool(sample.grammar_complete)
    if more:
        assert complete == 8 * more.get("n", 1)


def test_the_end_tag_comes_after_the_budget(llm: LLM) -> None:
    for budget in (0, 1, 5):
        for seed in range(4):
            free = SamplingParams(seed=seed, max_tokens=30, skip_special_tokens=False, ignore_eos=True)
            [plain] = llm.generate("go<think>", free)
            [reply] = llm.generate("go<think>", free.replace(thinking_budget=budget))
            ends = [
                i for i in range(31) if TAGS[1] in llm.tokenizer.decode(plain.token_ids[:i], skip_special_tokens=False)
            ]
            if ends and ends[0] <= budget:
                assert reply.token_ids == plain.token_ids
                continue
            assert reply.token_ids[:budget] == plain.token_ids[:budget]
            assert TAGS[1] in reply.text
            whole = llm.tokenizer.decode(reply.token_ids, skip_special_tokens=False)
            assert whole.startswith(llm.tokenizer.decode(plain.token_ids[:budget], skip_special_tokens=False))
    [no_thoughts] = llm.generate("go", SamplingParams(seed=1, max_tokens=20, skip_special_tokens=False))
    if TAGS[0] not in no_thoughts.text:
        [same] = llm.generate("go", SamplingParams(seed=1, max_tokens=20, skip_special_tokens=False, thinking_budget=0))
        assert same.text == no_thoughts.text


def test_the_whole_is_the_stream_and_company_changes_nothing(llm: LLM) -> None:
    params = [asked(seed=seed, thinking_budget=4 + seed) for seed in range(6)]
    together = llm.generate(["go<think>"] * 6, params)
    for each, reply in zip(params, together, strict=True):
        assert llm.generate("go<think>", each)[0].token_ids == reply.token_ids
        assert "".join(delta.text for delta in llm.stream("go<think>", each)) == reply.text


def test_beams_keep_the_constraint_after_their_reasoning(llm: LLM) -> None:
    sampling = asked(thinking_budget=2, max_tokens=20)
    [reply] = llm.beam_search(
        "go<think>", BeamSearchParams(beam_width=3, max_tokens=20), sampling=sampling.replace(max_tokens=16)
    )
    for sample in reply.samples:
        assert sample.grammar_complete
        assert answer_of(sample.text, opened=True) in CHOICES


def test_a_constraint_may_hold_from_the_first_character(llm: LLM) -> None:
    guided = GuidedDecodingParams(choice=CHOICES, enable_in_reasoning=True)
    [reply] = llm.generate("go<think>", asked(seed=1, guided_decoding=guided))
    assert reply.text in CHOICES
    with pytest.raises(ParamsError, match="thinking_budget must be None where the constraint has enable_in_reasoning"):
        asked(guided_decoding=guided, thinking_budget=3)


def test_stops_hold_in_the_reasoning_too(llm: LLM) -> None:
    stops = dict.fromkeys("abcdefghijklmnopqrstuvwxyz</>012345 ")
    [reply] = llm.generate("go<think>", asked(seed=3, stop=[*stops]))
    assert reply.stop is not None
    assert reply.stop.kind == "string"
    assert reply.grammar_complete is False


def test_a_parser_is_named_by_the_request_or_by_the_llm() -> None:
    with pytest.raises(ParamsError, match="reasoning_parser must be one of"):
        SamplingParams(reasoning_parser="thinker")
    with pytest.raises(ParamsError, match="reasoning_parser must be one of"):
        LLM("tiny", reasoning_parser="thinker")
    raw = tokenizer_of(special=False)
    with LLM(Noise(raw), tokenizer=raw) as llm:
        assert llm.generate("go<think>", asked(seed=1))[0].text in CHOICES
        held = llm.generate("go<think>", asked(seed=1, reasoning_parser="think", thinking_budget=2))[0]
        assert answer_of(held.text, opened=True) in CHOICES


def test_the_end_tag_needs_tokens_that_spell_it() -> None:
    raw = FastTokenizer(BPE({"a": 0, "b": 1}, []))
    raw.decoder = decoders.ByteLevel()

    with LLM(Noise(raw), tokenizer=raw) as llm, pytest.raises(ParamsError, match="tokens cannot spell </think>"):
        llm.generate([[0]], SamplingParams(thinking_budget=3))


def test_every_rest_of_an_end_tag_is_known() -> None:
    tiny = LLM("tiny")
    vocabulary = tirage.guided.Vocabulary.of(tiny.tokenizer, tiny.model.vocab_size)
    state = ReasoningState(ReasoningTokens(vocabulary, TAGS), opened=True, budget=0)
    text = b""
    while not state.over:
        mask = np.zeros(vocabulary.words, np.int32)
        state.fill(mask)
        token = only_bit(mask)
        assert token is not None
        text += vocabulary.tokens[token]
        state.accept(token)
    assert text == b"</think>"
