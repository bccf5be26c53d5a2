"""Reuse of what earlier requests read: the same tokens come out, sooner, and never from another adapter or picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_tokenizers import byte_level_tokenizer
from small_torch import Numbers, alone, build
from transformers.cache_utils import DynamicLayer

from tirage import LLM, ParamsError, Prompt, SamplingParams
from tirage.models.huggingface import wrap_module
from tirage.models.huggingface.cache_layers import crop_layer
from tirage.models.huggingface.preallocated_layer import PreallocatedLayer
from tirage.models.huggingface.prefix import BLOCK, CachedPrefix, PrefixStore, common

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
KEY = (None, b"", "")


def ids_of(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(4, 196, count).tolist()


def entry(token_ids: list[int], *, size: int = 10, croppable: bool = True, key: Any = KEY) -> CachedPrefix:
    return CachedPrefix(key, tuple(token_ids), object(), croppable, size)


def llm_of(module: Any, **options: Any) -> LLM:
    return LLM(wrap_module(module, **options), tokenizer=Numbers())


# The store.


def test_the_longest_shared_beginning_is_found_token_by_token() -> None:
    store, ids = PrefixStore(100), ids_of(50)
    store.add(short := entry(ids[:20]))
    store.add(long := entry([*ids[:40], 1, 2, 3]))
    found = store.find(KEY, ids, 49)
    assert found == (long, 40)
    assert store.find(KEY, ids, 33) == (long, 33)
    assert store.find(KEY, ids_of(50, seed=1), 49) is None
    assert short.token_ids == tuple(ids[:20])


def test_less_than_a_block_is_not_shared() -> None:
    store, ids = PrefixStore(100), ids_of(50)
    store.add(entry(ids[: BLOCK - 1]))
    assert len(store) == 0
    store.add(entry(ids[:30]))
    assert store.find(KEY, [*ids[: BLOCK - 1], 1, 2, 3, 4], 18) is None


def test_adapter_media_and_salt_keep_entries_apart() -> None:
    store, ids = PrefixStore(100), ids_of(50)
    keys: list[Any] = [KEY, ("a", b"", ""), (None, b"x", ""), (None, b"", "tenant")]
    entries = {key: entry(ids, key=key) for key in keys}
    for one in entries.values():
        store.add(one)
    assert [store.find(key, ids, 49) for key in keys] == [(entries[key], 49) for key in keys]
    assert store.find(("b", b"", ""), ids, 49) is None


@pytest.mark.slow
def test_two_salts_never_share_and_one_does() -> None:
    module = build()
    llm, prompt = llm_of(module), ids_of(40)
    expected = alone(module, prompt, 12)
    cached = []
    for salt in ("alice", "bob", "", "alice", "bob", ""):
        done = llm.generate(Prompt(token_ids=prompt, salt=salt), GREEDY)[0]
        assert list(done.token_ids) == expected
        cached.append(done.usage.cached_tokens)
    assert cached == [0, 0, 0, 39, 39, 39]
    llm.engine.flush()
    assert llm.generate(Prompt(token_ids=prompt, salt="alice"), GREEDY)[0].usage.cached_tokens == 0


@pytest.mark.slow
def test_the_salts_of_chats_keep_their_prefixes_apart() -> None:
    module = build(vocab_size=280)
    llm = LLM(wrap_module(module), tokenizer=byte_level_tokenizer())
    messages = [{"role": "user", "content": "a long enough question, is it not?"}]
    found = [
        llm.engine.submit(llm.chat_request(messages, GREEDY, salt=salt)).wait(60) for salt in ("alice", "bob", "alice")
    ]
    assert [done.usage.cached_tokens > 0 for done in found] == [False, False, True]
    assert len({done.token_ids for done in found}) == 1


def test_a_salt_that_is_no_text_is_refused() -> None:
    with pytest.raises(ParamsError, match="prompt salt must be a text, got int"):
        llm_of(build()).generate(Prompt(token_ids=[5, 6], salt=3), GREEDY)  # type: ignore[arg-type]


def test_an_entry_that_goes_on_replaces_the_one_that_it_continues() -> None:
    store, ids = PrefixStore(100), ids_of(80)
    store.add(entry(ids[:32]))
    store.add(longer := entry(ids))
    assert (len(store), store.used) == (1, 10)
    assert store.find(KEY, ids[:40], 39) == (longer, 39)


def test_the_entry_used_longest_ago_makes_room() -> None:
    store = PrefixStore(30)
    many = [ids_of(40, seed) for seed in range(4)]
    for ids in many[:3]:
        store.add(entry(ids))
    assert store.find(KEY, many[0], 39) is not None
    store.add(entry(many[3]))
    assert [store.find(KEY, ids, 39) is not None for ids in many] == [True, False, True, True]
    assert store.used == 30
    store.add(entry(ids_of(40, 9), size=31))
    assert len(store) == 3


def test_an_entry_that_cannot_be_cut_serves_prompts_that_begin_with_all_of_it() -> None:
    store, ids = PrefixStore(100), ids_of(50)
    store.add(whole := entry(ids[:30], croppable=False))
    assert store.find(KEY, ids, 49) == (whole, 30)
    assert store.find(KEY, ids[:25], 24) is None
    assert store.find(KEY, ids[:30], 29) is None


def test_a_hash_never_decides_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tirage.models.huggingface.prefix.chain", lambda key, ids: [7] * (len(ids) // BLOCK))
    store = PrefixStore(100)
    store.add(entry(ids_of(40)))
    assert store.find(KEY, ids_of(40, seed=1), 39) is None
    assert store.find(("a", b"", ""), ids_of(40), 39) is None


def test_common_counts_equal_leading_tokens() -> None:
    assert [common([1, 2, 3], [1, 2, 4], 9), common([1, 2], [1, 2, 3], 1), common([], [1], 5)] == [2, 1, 0]


# Real models. Gemma 2's windows and Mamba's states cannot be cut, so they serve whole histories only.


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma2", "mamba", "lfm2"])
def test_a_second_turn_is_read_from_where_the_first_ended(name: str) -> None:
    module = build(name)
    llm = llm_of(module)
    first = llm.generate(history := ids_of(60), GREEDY)[0]
    turn = [*history, *first.token_ids, *ids_of(9, seed=2)]
    second = llm.generate(turn, GREEDY)[0]
    assert list(second.token_ids) == alone(module, turn, 12)
    assert (first.usage.cached_tokens, second.usage.cached_tokens) == (0, 60 + 11)


@pytest.mark.slow
def test_requests_share_the_beginning_that_they_have_in_common() -> None:
    module = build()
    llm = llm_of(module)
    system = ids_of(50)
    prompts = [[*system, *ids_of(10, seed)] for seed in range(3)]
    llm.generate(prompts[0], GREEDY)
    done = llm.generate(prompts, GREEDY)
    assert [d.usage.cached_tokens for d in done] == [59, 50, 50]
    assert [list(d.token_ids) for d in done] == [alone(module, prompt, 12) for prompt in prompts]


@pytest.mark.slow
def test_reuse_of_a_window_that_has_not_moved_yet() -> None:
    module = build("gemma2", sliding_window=100)
    llm = llm_of(module)
    llm.generate(ids_of(40), GREEDY)
    turn = [*ids_of(40)[:35], *ids_of(80, seed=3)]
    done = llm.generate(turn, GREEDY)[0]
    assert done.usage.cached_tokens == 35
    assert list(done.token_ids) == alone(module, turn, 12)


@pytest.mark.slow
def test_a_budget_of_nothing_turns_reuse_off() -> None:
    llm = llm_of(build(), prefix_bytes=0)
    for _ in range(2):
        assert llm.generate(ids_of(60), GREEDY)[0].usage.cached_tokens == 0


@pytest.mark.slow
def test_the_budget_bounds_what_is_kept() -> None:
    module = build()
    llm = llm_of(module, prefix_bytes=100_000)
    for seed in range(12):
        llm.generate(ids_of(60, seed), GREEDY)
    store = llm.model.prefixes  # type: ignore[attr-defined]
    assert 0 < store.used <= 100_000
    assert store.used == sum(entry.size for entry in store._entries.values())
    # Keys and values of 2 layers, 2 heads of 16 floats, for 71 tokens and the room behind them.
    assert next(iter(store._entries.values())).size == 2 * 2 * 2 * 16 * 4 * (71 + 64)


@pytest.mark.slow
def test_prompt_logprobs_hidden_states_and_embeddings_read_the_whole_prompt() -> None:
    module = build()
    llm = llm_of(module)
    ids = ids_of(60)
    embeds = module.get_input_embeddings().weight.detach()[ids].numpy()
    llm.generate(ids, GREEDY)
    scored = llm.generate(ids, GREEDY.replace(prompt_logprobs=0))[0]
    shown = llm.generate(ids, GREEDY, return_hidden_states=True)[0]
    given = llm.generate(Prompt(embeds=embeds), GREEDY)[0]
    assert [done.usage.cached_tokens for done in (scored, shown, given)] == [0, 0, 0]
    assert scored.prompt_logprobs is not None
    assert len(scored.prompt_logprobs) == 60


@pytest.mark.slow
def test_an_aborted_or_failed_request_leaves_nothing_behind() -> None:
    module = build()
    llm = llm_of(module)
    deltas = llm.stream(ids_of(60), GREEDY.replace(max_tokens=100))
    next(deltas)
    deltas.close()  # type: ignore[attr-defined]
    llm.engine.call(lambda: None)
    assert llm.generate(ids_of(60), GREEDY)[0].usage.cached_tokens in (0, 59)
    assert list(llm.generate(ids_of(60), GREEDY)[0].token_ids) == alone(module, ids_of(60), 12)


# Room behind a row.


def states(count: int, seed: int) -> Any:
    return torch.randn((1, 2, count, 4), generator=torch.Generator().manual_seed(seed))


def test_a_layer_with_room_holds_what_transformers_own_holds() -> None:
    roomy, plain = PreallocatedLayer(), DynamicLayer()
    for seed, count in enumerate((5, 1, 1, 70, 1, 200, 3)):
        given = states(count, seed), states(count, seed + 50)
        for ours, theirs in zip(roomy.update(*given), plain.update(*given), strict=True):
            assert torch.equal(ours, theirs)
    assert roomy.get_seq_length() == plain.get_seq_length() == 281


def test_layers_that_share_room_never_see_what_another_wrote() -> None:
    base = PreallocatedLayer()
    base.update(states(10, 0), states(10, 1))
    first, second = crop_layer(base, 10), crop_layer(base, 10)
    shorter = crop_layer(base, 6)
    whole = base.keys.clone()
    first.update(states(2, 2), states(2, 3))
    assert first.keys.data_ptr() == base.keys.data_ptr()
    for other, start in ((second, 10), (shorter, 6), (base, 10)):
        other.update(states(2, start + 7), states(2, 4))
        assert other.keys.data_ptr() != first.keys.data_ptr()
        assert torch.equal(other.keys, torch.cat([whole[:, :, :start], states(2, start + 7)], -2))
    assert torch.equal(first.keys, torch.cat([whole, states(2, 2)], -2))


def test_a_turn_that_goes_on_moves_nothing() -> None:
    llm, history = llm_of(build()), ids_of(60)
    llm.generate([history], GREEDY.replace(max_tokens=1))
    (entry,) = llm.engine.model.prefixes._entries.values()  # type: ignore[attr-defined]
    before = entry.cache.layers[0].keys.data_ptr()
    done = llm.generate([[*history, 7, 8, 9]], GREEDY.replace(max_tokens=1))[0]
    assert done.usage.cached_tokens == 60
    (entry,) = llm.engine.model.prefixes._entries.values()  # type: ignore[attr-defined]
    assert (len(entry.token_ids), entry.cache.layers[0].keys.data_ptr()) == (63, before)
