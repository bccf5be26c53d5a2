"""Gemma's door: the same calls, every kind of argument, and none of the original's surprises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_transformers import HELLO, LetterTokenizer, SmallTransformer, Special, V, reply, slow_greedy, small

from tirage import LLM, ModelError, ParamsError, SamplingParams
from tirage.compat import gemma
from tirage.compat.gemma import ChatSampler, Greedy, RandomSampling, Sampler, SamplingMethod, TopkSampling, TopPSampling

# Sampler.


@pytest.mark.slow
@pytest.mark.parametrize("pad_length", [None, 8, (16, 32), (256, 512, 1024), 6])
@pytest.mark.parametrize("library", ["numpy", "jax"])
def test_greedy_tokens_are_those_of_the_model_alone(library: str, pad_length: Any) -> None:
    sampler = small(model=SmallTransformer(library), pad_length=pad_length)
    assert slow_greedy(SmallTransformer(), HELLO, 9) == reply(sampler, max_new_tokens=9)


def test_a_list_of_prompts_gives_each_what_it_gets_alone() -> None:
    sampler, prompts = small(), ["hello", "", "a much longer prompt", "hello"]
    together = reply(sampler, prompts)
    assert [reply(sampler, prompt) for prompt in prompts] == together
    assert sampler.sample([]) == []
    drawn = reply(sampler, prompts, sampling=RandomSampling(), rng=[1, 2, 3, 4])
    assert [
        reply(sampler, p, sampling=RandomSampling(), rng=s) for p, s in zip(prompts, (1, 2, 3, 4), strict=True)
    ] == drawn


@pytest.mark.slow
@pytest.mark.parametrize("library", ["numpy", "jax"])
@pytest.mark.parametrize("prompts", [("hello", " again"), (["hello", "a"], [" again", "bb"])])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("pad_length", [None, (8, 16)])
def test_turns_equal_one_prompt_with_everything(library: str, prompts: Any, stream: bool, pad_length: Any) -> None:
    sampler = small(model=SmallTransformer(library, bonus=(int(Special.END_OF_TURN), 14.0)), pad_length=pad_length)
    first = sampler.sample(prompts[0], return_state=True, max_new_tokens=5, stream=stream)
    first = list(first)[-1] if stream else first
    second = sampler.sample(prompts[1], last_state=first.state, return_state=True, max_new_tokens=6)
    third = sampler.sample(prompts[1], last_state=second.state, return_state=True, max_new_tokens=6)
    whole = [list(row.token_ids)[: -len(row.output_ids)] for row in third.state.rows]
    assert [list(row.output_ids) for row in third.state.rows] == reply(sampler, whole, max_new_tokens=6)


def test_a_state_can_be_continued_more_than_once() -> None:
    for sampler in (small(), bundled()):
        state = sampler.sample("hello", return_state=True, max_new_tokens=3).state
        once = reply(sampler, " x", last_state=state, max_new_tokens=4)
        assert once == reply(sampler, " x", last_state=state, max_new_tokens=4)
        longer = reply(sampler, "hello", max_new_tokens=7)
        assert longer[3:] == reply(sampler, "", last_state=state, max_new_tokens=4)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["numpy", "jax"])
def test_a_conversation_keeps_its_cache_whichever_sampler_goes_on_with_it(library: str) -> None:
    model = SmallTransformer(library)
    first, other = (small(model=model, cache_length=length, pad_length=length // 2) for length in (24, 40))
    state = first.sample("hello", return_state=True, max_new_tokens=3).state
    turn = other.sample(" x", last_state=state, return_state=True)
    assert (state.cache_length, turn.state.cache_length, turn.finish_reason) == (24, 24, "cache_full")
    assert turn.tokens.tolist() == first.sample(" x", last_state=state, return_state=True).tokens.tolist()
    with pytest.raises(ParamsError, match="cache_length, which is 24, got a conversation of"):
        other.sample("x" * 30, last_state=state)
    assert bundled().sample("a", return_state=True, max_new_tokens=1).state.cache_length == 200


def test_the_state_describes_the_conversation() -> None:
    sampler = small()
    state = sampler.sample(["hello", "a"], return_state=True, max_new_tokens=3).state
    turn = sampler.sample(["", "bcd"], last_state=state, return_state=True, max_new_tokens=2).state
    rows = [row.token_ids for row in turn.rows]
    assert [len(row) for row in rows] == [11, 10]
    assert turn.last_token.tolist() == [row[-1] for row in rows]
    assert turn.last_token_pos.tolist() == [10, 9]
    assert (turn.step, turn.used_cache_length) == (2, 10)
    assert turn.predicted_tokens.tolist() == [[*row[-2:], *[0] * 14] for row in rows]


def test_a_turn_draws_from_the_rng_of_its_own_call() -> None:
    sampler = small(sampling=RandomSampling(temperature=20.0))
    states = [sampler.sample("hello", return_state=True, max_new_tokens=3, rng=seed).state for seed in (1, 1, 2)]
    one, same, other = [reply(sampler, " x", last_state=state, rng=5) for state in states]
    assert one == same
    assert reply(sampler, " x", last_state=states[0], rng=6) != one != other
    row = sampler.sample(" x", last_state=states[2], return_state=True, rng=5).state.rows[0]
    assert other == reply(sampler, list(row.token_ids[: -len(row.output_ids)]), rng=5)


def test_the_end_token_is_part_of_the_text_and_of_the_tokens() -> None:
    sampler = small(model=SmallTransformer(bonus=(int(Special.END_OF_TURN), 500.0)))
    output = sampler.sample("hello", return_state=True)
    assert (output.text, output.finish_reason) == ("<end_of_turn>", "stop")
    assert output.tokens.tolist() == [6] + [0] * 15
    assert output.state.done.tolist() == [True]


def test_stop_and_forbidden_tokens_are_ids_or_texts_of_one_token() -> None:
    free = reply(small(), max_new_tokens=8)
    stop = reply(small(stop_tokens=[chr(free[2])]), max_new_tokens=8)
    assert free[: free.index(free[2]) + 1] == stop
    assert reply(small(stop_tokens=np.array([free[2]])), max_new_tokens=8) == stop
    banned = reply(small(forbidden_tokens=[free[0], chr(free[1])]), max_new_tokens=8)
    assert set(banned).isdisjoint(free[:2])
    assert slow_greedy(SmallTransformer(), HELLO, 8, (3, free[0], free[1])) == banned


def test_the_tokenizers_own_forbidden_tokens_are_never_drawn() -> None:
    sampler = small(model=SmallTransformer(bonus=(3, 90.0)))
    assert 3 not in reply(sampler)


@pytest.mark.parametrize(("limit", "count"), [(None, 16), (0, 16), (5, 5), (np.int64(3), 3)])
def test_max_new_tokens_none_or_zero_is_the_whole_buffer(limit: Any, count: int) -> None:
    output = small().sample("hello", max_new_tokens=limit, return_state=True)
    assert (len(output.state.rows[0].output_ids), output.finish_reason) == (count, "length")
    assert output.tokens.shape == (16,)


def test_a_full_cache_is_a_finish_reason() -> None:
    output = small(cache_length=10).sample(["hello", "a"], return_state=True)
    assert output.finish_reason == ("cache_full", "cache_full")
    assert [len(row.token_ids) for row in output.state.rows] == [10, 10]
    assert output.state.used_cache_length == 9


def test_prompts_may_be_texts_arrays_ids_and_conversations() -> None:
    sampler = small()
    expected = reply(sampler)
    one = [HELLO, HELLO[1:], np.array(HELLO), np.array("hello"), "<bos>hello"]
    assert [reply(sampler, prompt) for prompt in one] == [expected] * len(one)
    several = [["hello"], ("hello",), np.array(["hello"]), [HELLO], np.array([HELLO]), (p for p in ["hello"])]
    assert [reply(sampler, prompt) for prompt in several] == [[expected]] * len(several)
    tokenizer = LetterTokenizer()
    tokenizer.FORMAT = "gemma3"  # type: ignore[assignment]
    conversation = SimpleNamespace(as_text=lambda format: "hello" if format == "gemma3" else "")
    with pytest.raises(ParamsError, match="prompt must be text with this tokenizer, which names no FORMAT"):
        sampler.sample(conversation)
    assert reply(small(tokenizer=tokenizer), conversation) == expected
    assert reply(small(tokenizer=tokenizer), [conversation, "hello"]) == [expected, expected]


def test_id_zero_in_a_prompt_is_a_token_like_any_other() -> None:
    ids = [2, 65, 0, 66, 0]
    assert slow_greedy(SmallTransformer(), ids, 5) == reply(small(pad_length=16), ids, max_new_tokens=5)


def test_bos_comes_on_the_first_turn_only() -> None:
    sampler = small()
    state = sampler.sample("a", return_state=True, max_new_tokens=1).state
    again = sampler.sample("b", last_state=state, return_state=True, max_new_tokens=1).state
    assert [token for token in again.rows[0].token_ids if token == Special.BOS] == [2]


# Streams.


def test_a_stream_joined_is_the_text() -> None:
    sampler = small(model=SmallTransformer(bonus=(6, 14.0)))
    prompts = ["hello", "a", "again and again"]
    whole = sampler.sample(prompts)
    steps = list(sampler.sample(prompts, stream=True))
    assert ["".join(texts) for texts in zip(*steps, strict=True)] == whole
    assert "".join(sampler.sample("hello", stream=True)) == whole[0]


def test_a_finished_prompt_yields_no_more_text() -> None:
    sampler = small(model=SmallTransformer(bonus=(6, 20.0)))
    outputs = list(
        sampler.sample(["hello", "a", "xyz", "b"], stream=True, return_state=True, rng=1, sampling=RandomSampling())
    )
    ends = [next(i for i, output in enumerate(outputs) if output.finish_reason[row]) for row in range(4)]
    assert len(set(ends)) > 1
    for row, end in enumerate(ends):
        assert [output.text[row] for output in outputs[end + 1 :]] == [""] * (len(outputs) - end - 1)
        assert {len(output.state.rows[row].output_ids) for output in outputs[end:]} == {end + 1}


def test_mistakes_are_found_at_the_call_and_not_at_the_first_step() -> None:
    with pytest.raises(ParamsError):
        small().sample("hello", stream=True, max_new_tokens=17)


class Bytes(LetterTokenizer):
    """Characters of several tokens: each byte of their UTF-8 is one."""

    def decode(self, ids: Any) -> str:
        return bytes(int(i) % 256 for i in ids).decode("utf-8", "replace")


@pytest.mark.slow
def test_a_character_of_several_tokens_is_never_broken_in_a_stream() -> None:
    text = "é日a"
    said = iter(text.encode())

    class Says(SamplingMethod):
        def get_next_tokens(self, logits: Any, rng: Any) -> Any:
            return np.array([next(said)])

    model = SmallTransformer()
    model = Wide(model)
    sampler = Sampler(model=model, params=model.small.params(), tokenizer=Bytes(), cache_length=64, max_out_length=16)
    parts = list(sampler.sample("x", stream=True, sampling=Says(), max_new_tokens=6))
    assert parts == ["", "é", "", "", "日", "a"]


class Wide:
    """A model whose logits have a place for every byte."""

    INFO = SimpleNamespace(tokenizer_version=None)
    config = SimpleNamespace(num_embed=256)

    def __init__(self, small: SmallTransformer) -> None:
        self.small = small
        self.init_cache = small.init_cache

    def apply(self, variables: Any, tokens: Any, **options: Any) -> Any:
        out = self.small.apply(variables, tokens % V, **options)
        return SimpleNamespace(logits=np.concatenate([out.logits, out.logits], axis=-1), cache=out.cache)


# Mistakes.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_length": 0}, "cache_length must be an integer >= 1, got 0"),
        ({"max_out_length": 2.5}, "max_out_length must be an integer >= 1, got 2.5"),
        ({"pad_length": (0,)}, "pad_length must be an integer >= 1"),
        ({"pad_length": True}, "pad_length must be an integer >= 1"),
        ({"stop_tokens": ["ab"]}, "stop_tokens must hold .* exactly one token, got 'ab'"),
        ({"stop_tokens": [""]}, "exactly one token, got ''"),
        ({"stop_tokens": "ab"}, "stop_tokens must be a list"),
        ({"stop_tokens": np.array(5)}, "stop_tokens must be a list"),
        ({"stop_tokens": 5}, "stop_tokens must be a list"),
        ({"stop_tokens": [1.5]}, "exactly one token, got 1.5"),
        ({"forbidden_tokens": [-1]}, "forbidden_tokens must hold ids >= 0"),
        ({"forbidden_tokens": [9999]}, "forbidden_tokens must lie in .0, 128., got 9999"),
        ({"sampling": lambda logits, rng: 1}, "sampling must be a SamplingMethod object"),
        ({"sampling": Greedy}, "sampling must be a SamplingMethod object"),
    ],
)
def test_a_bad_sampler_is_refused_when_it_is_made(options: Any, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        small(**options)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("a", {"max_new_tokens": 17}, "max_new_tokens must be at most max_out_length, which is 16, got 17"),
        ("a", {"max_new_tokens": -1}, "max_new_tokens must be an integer >= 0"),
        ("a", {"max_new_tokens": True}, "max_new_tokens must be an integer >= 0"),
        ("a" * 63, {}, "cache_length, which is 64, got a conversation of 64 tokens"),
        ("a", {"images": np.zeros((4, 4, 3), np.uint8)}, "images must be None with this model"),
        ("a", {"last_state": "state"}, "last_state must be a SamplingState"),
        ("a", {"sampling": 3}, "sampling must be a SamplingMethod"),
        (None, {}, "prompt must be a text"),
        (b"a", {}, "prompt must be a text"),
        ([b"a"], {}, "prompt must be a text"),
        ([["a"]], {}, "prompt must be a text"),
        ([1, 500], {}, "prompt token ids must be integers in .0, 128., got 500"),
        ([True], {}, "got True"),
        (np.array([["a"]]), {}, "2 axes"),
        (np.array(5), {}, "prompt must be a text"),
        (np.array(1.5), {}, "prompt must be a text"),
        (np.array([1.5]), {}, "prompt must be a text"),
        ({"a": 1}, {}, "prompt must be a text"),
        ("\ud800", {}, "Unicode"),
        ("a", {"sharding": object()}, "sharding must be None where params are no JAX arrays"),
    ],
)
def test_a_bad_call_is_refused_before_the_model_runs(prompt: Any, options: Any, message: str) -> None:
    sampler = small()
    with pytest.raises(ParamsError, match=message):
        sampler.sample(prompt, **options)


def test_a_state_of_another_number_of_prompts_is_refused() -> None:
    sampler = small()
    state = sampler.sample(["a", "b"], return_state=True, max_new_tokens=1).state
    with pytest.raises(ParamsError, match="prompt must hold 2 prompts, as many as last_state, got 1"):
        sampler.sample("a", last_state=state)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (TopkSampling, {"k": 0}, "k must be an integer >= 1, got 0"),
        (TopkSampling, {"k": 2.5}, "k must be an integer >= 1"),
        (RandomSampling, {"temperature": -1.0}, "temperature must be"),
        (TopPSampling, {"p": float("nan")}, "p must be a number"),
        (TopPSampling, {"p": 0, "temperature": -1}, "temperature must be"),
    ],
)
def test_a_bad_method_is_refused_when_it_is_made(method: Any, options: Any, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        method(**options)


def test_a_users_method_must_return_a_token() -> None:
    class Wrong(SamplingMethod):
        def get_next_tokens(self, logits: Any, rng: Any) -> Any:
            return np.array([V])

    with pytest.raises(ParamsError, match=r"get_next_tokens must return one token id in \[0, 128\)"):
        small().sample("a", sampling=Wrong())


def test_logits_without_a_token_end_their_own_prompt() -> None:
    sampler = small(forbidden_tokens=list(range(V)))
    output = sampler.sample(["a", "b"], return_state=True)
    assert (output.text, output.finish_reason) == (["", ""], ("error", "error"))


def test_a_model_must_name_a_tokenizer_or_be_given_one() -> None:
    with pytest.raises(ModelError, match="tokenizer must be given"):
        small(tokenizer=None)
    model = SmallTransformer()
    with pytest.raises(ModelError, match="params must be given"):
        Sampler(model=model, tokenizer=LetterTokenizer())
    with pytest.raises(ModelError, match="model must be a TransformerLike"):
        Sampler(model=3, tokenizer=LetterTokenizer())
    with pytest.raises(ModelError, match="params must be a nested mapping with at least one array"):
        Sampler(model=model, params={"layer": []}, tokenizer=LetterTokenizer())
    llm = LLM("tiny")
    with pytest.raises(ParamsError, match="params must be None with a tirage model"):
        Sampler(model=llm.model, params=model.params(), tokenizer=llm.tokenizer)
    with pytest.raises(ModelError, match="tokenizer must know Gemma's turns, <start_of_turn> as one token"):
        ChatSampler(model=llm.model, tokenizer=llm.tokenizer)

    class Other(SmallTransformer):
        INFO = SimpleNamespace(tokenizer_version=3)

    tokenizer = LetterTokenizer()
    tokenizer.VERSION = 2
    with pytest.raises(ModelError, match="tokenizer must be of the model's version, which is 3, got 2"):
        Sampler(model=Other(), params=model.params(), tokenizer=tokenizer)


def test_a_sampler_shows_no_weights_and_can_be_a_key() -> None:
    sampler = small()
    assert len(repr(sampler)) < 600
    assert {sampler: 1}[sampler] == 1


# The bundled model.


def bundled() -> Sampler:
    llm = LLM("tiny")
    return Sampler(model=llm.model, tokenizer=llm.tokenizer, cache_length=200, max_out_length=20)


@pytest.mark.slow
def test_the_bundled_model_writes_what_the_llm_writes() -> None:
    llm = LLM("tiny")
    expected = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=20))[0]
    assert list(expected.token_ids) == reply(bundled(), "Once upon a time")
    assert bundled().sample("Once upon a time") == expected.text.removeprefix(" ")
    drawn = llm.generate("The dog", SamplingParams(seed=4, max_tokens=20))[0]
    assert list(drawn.token_ids) == reply(bundled(), "The dog", sampling=RandomSampling(), rng=4)


def test_the_bundled_models_turns_equal_one_prompt() -> None:
    sampler = bundled()
    state = sampler.sample("Once upon a time", return_state=True).state
    turn = sampler.sample(" The dog", last_state=state, return_state=True)
    row = turn.state.rows[0]
    assert reply(sampler, list(row.token_ids[: -len(row.output_ids)])) == list(row.output_ids)


# ChatSampler.


def chatter(**options: Any) -> ChatSampler:
    model = SmallTransformer(bonus=(6, 14.0))
    defaults: dict[str, Any] = {"tokenizer": LetterTokenizer(), "cache_length": 250, "max_out_length": 12}
    return ChatSampler(model=model, params=model.params(), **{**defaults, **options})


def test_a_chat_of_several_turns_is_one_conversation() -> None:
    chat = chatter(multi_turn=True)
    first, second = chat.chat("hi"), chat.chat("you")
    assert chat.turns == [("hi", first), ("you", second)]
    assert "<end_of_turn>" not in first + second
    assert chat.last_state is not None
    row = chat.last_state.rows[0]
    written = chat.tokenizer.decode(row.token_ids)
    assert written.startswith("<bos><start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n" + first)
    assert "<start_of_turn>user\nyou<end_of_turn>\n<start_of_turn>model\n" + second in written
    assert reply(chat.sampler, list(row.token_ids[: -len(row.output_ids)])) == list(row.output_ids)


def test_without_multi_turn_each_call_begins_anew() -> None:
    chat = chatter()
    assert chat.chat("hi") == chat.chat("hi")
    assert len(chat.turns) == 1
    kept = chatter()
    kept.chat("hi", multi_turn=True)
    again = kept.chat("hi", multi_turn=True)
    assert len(kept.turns) == 2
    assert again != chat.turns[0][1]


def test_a_chat_goes_on_from_a_given_state() -> None:
    one = chatter(multi_turn=True)
    one.chat("hi")
    other = chatter(last_state=one.last_state)
    assert one.chat("you") == other.chat("you")


def test_a_chat_that_fails_leaves_the_conversation_alone() -> None:
    chat = chatter(multi_turn=True)
    chat.chat("hi")
    before = (list(chat.turns), chat.last_state)
    with pytest.raises(ParamsError, match="cache_length"):
        chat.chat("x" * 250)
    assert (chat.turns, chat.last_state) == before


def test_a_reply_that_was_cut_is_a_turn_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = chatter(multi_turn=True, max_out_length=2)
    chat.chat("hi")
    chat.chat("you")
    assert [len(row) for row in chat.turns] == [2, 2]
    parts = SimpleNamespace(
        User=lambda text: ("user", text), Model=lambda text: ("model", text), Conversation=lambda *turns: turns
    )
    monkeypatch.setitem(sys.modules, "dialog", parts)
    (_, first), (_, second) = chat.turns
    assert chat.conversation == (("user", "hi"), ("model", first), ("user", "you"), ("model", second))
    monkeypatch.setitem(sys.modules, "dialog", None)
    with pytest.raises(ModelError, match="conversation needs the dialog package, see turns; pip install dialog"):
        _ = chat.conversation


def test_a_reply_is_printed_without_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    chat = chatter(print_stream=True)
    text = chat.chat("hi")
    assert capsys.readouterr().out == text + "\n"
    added: list[str] = []
    assert chat.chat("hi", print_stream=SimpleNamespace(add=added.append)) == "".join(added)
    assert capsys.readouterr().out == ""


def test_other_prompts_and_turns_are_refused() -> None:
    with pytest.raises(ParamsError, match="prompt must be a text or a Conversation, got list"):
        chatter().chat(["hi"])
    with pytest.raises(ParamsError, match="turns must be empty"):
        chatter(turns=[("a", "b")])
    with pytest.raises(ParamsError, match="print_stream must be"):
        chatter().chat("hi", print_stream="yes")


def test_the_door_has_the_names_of_its_users() -> None:
    assert set(gemma.__all__) == {
        "ChatSampler", "Gemma4Sampler", "Greedy", "RandomSampling", "Sampler", "SamplerOutput", "SamplingMethod",
        "SamplingState", "ToolSampler", "TopPSampling", "TopkSampling",
    }  # fmt: skip
    assert all(hasattr(gemma, name) for name in gemma.__all__)


# The real package, in an interpreter of its own.

PEER = os.environ.get("TIRAGE_TEST_GEMMA_PYTHON", "")


@pytest.fixture(scope="module")
def peer_answers() -> dict[str, Any]:
    """What both samplers say of the real Transformer with random weights."""
    script = Path(__file__).with_name("peer_gemma.py")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    run = subprocess.run([PEER, str(script)], capture_output=True, text=True, env=environment, check=True)
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.skipif(not PEER, reason="TIRAGE_TEST_GEMMA_PYTHON names no interpreter with gemma and tirage")
def test_the_real_transformer_says_the_same_through_both_doors(peer_answers: dict[str, Any]) -> None:
    theirs, ours = peer_answers["theirs"], peer_answers["ours"]
    assert set(theirs) >= {"greedy", "batch", "padded", "forbidden", "stop", "stream"}
    assert theirs == ours


@pytest.mark.skipif(not PEER, reason="TIRAGE_TEST_GEMMA_PYTHON names no interpreter with gemma and tirage")
def test_the_real_transformer_sees_the_same_through_both_doors(peer_answers: dict[str, Any]) -> None:
    seen = peer_answers["images"]
    assert seen["theirs"] == seen["ours"]
    assert seen["their last"] == seen["our last"]
    assert seen["turns"] == seen["at once"]


@pytest.mark.skipif(not PEER, reason="TIRAGE_TEST_GEMMA_PYTHON names no interpreter with gemma and tirage")
def test_the_packages_own_tokenizer_gives_the_same_words_through_both_doors(peer_answers: dict[str, Any]) -> None:
    theirs, ours = peer_answers["their words"], peer_answers["our words"]
    assert set(theirs) >= {"text", "conversation", "conversations", "array", "banned", "custom", "sharded"}
    assert theirs == ours


@pytest.mark.skipif(not PEER, reason="TIRAGE_TEST_GEMMA_PYTHON names no interpreter with gemma and tirage")
def test_a_stream_of_the_packages_own_tokenizer_joins_to_the_text(peer_answers: dict[str, Any]) -> None:
    assert peer_answers["more"]["stream"] == peer_answers["our words"]["text"]
    assert peer_answers["more"]["llm"] == peer_answers["more"]["sampler"]


@pytest.mark.skipif(not PEER, reason="TIRAGE_TEST_GEMMA_PYTHON names no interpreter with gemma and tirage")
def test_a_chat_with_the_packages_own_parts_is_a_conversation(peer_answers: dict[str, Any]) -> None:
    more = peer_answers["more"]
    assert more["turns"] == 4
    assert more["reply"] == more["their reply"].removesuffix("<end_of_turn>")


@pytest.mark.skipif(not PEER, reason="TIRAGE_TEST_GEMMA_PYTHON names no interpreter with gemma and tirage")
def test_gemma_4s_real_text_model_says_what_it_says_when_read_anew(peer_answers: dict[str, Any]) -> None:
    assert peer_answers["newest"]["ours"] == peer_answers["newest"]["anew"]


@pytest.mark.skipif(not PEER, reason="TIRAGE_TEST_GEMMA_PYTHON names no interpreter with gemma and tirage")
def test_the_real_transformers_turns_equal_one_prompt(peer_answers: dict[str, Any]) -> None:
    assert peer_answers["turns"] == peer_answers["at once"]
    assert peer_answers["conversation"] == "<start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n"
    assert peer_answers["user method"] == peer_answers["ours"]["greedy"]


@pytest.mark.slow
def test_jax_is_loaded_only_for_models_that_use_it() -> None:
    code = (
        "import sys; from tirage import LLM; from tirage.compat.gemma import Sampler; llm = LLM('tiny');"
        "s = Sampler(model=llm.model, tokenizer=llm.tokenizer); s.sample('a', max_new_tokens=2);"
        "print('jax' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "False"
    )
