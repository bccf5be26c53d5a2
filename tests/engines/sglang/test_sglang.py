"""SGLang's published classes with tirage inside: the tokens are those of `tirage.sample` for the same logits."""

from __future__ import annotations

import gc
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from every_parameter import company, operators_own, requests
from scheduled import V, batch_info, logits_of, request, step
from sglang.srt.arg_groups.overrides import _deterministic_sampling_backend
from sglang.srt.layers import sampler as sglang_sampler
from sglang.srt.layers.sampler import apply_custom_logit_processor, create_sampler
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.runtime_context import get_context
from sglang.srt.sampling.sampling_params import TOP_K_ALL
from sglang.srt.sampling.sampling_params import SamplingParams as SGLangParams

import tirage
from tirage import ParamsError, SamplingParams
from tirage.integrations import sglang

PROMPTS = [[5, 9, 14, 9, 5, 9, 14], [7, 7, 21], [100]]
FIELDS: list[dict[str, Any]] = [
    {"seed": 3, "top_p": 0.9, "repetition_penalty": 1.3, "temperature": 1.4},
    {"seed": 4, "min_p": 0.02, "no_repeat_ngram_size": 2},
    {"seed": 5, "temperature": 2.0},
]


def redrawn(prompt: list[int], fields: dict[str, Any], count: int) -> list[int]:
    output, state = list[int](), None
    for _ in range(count):
        params = SamplingParams.from_dict(fields)
        draw = tirage.sample(logits_of([*prompt, *output]), params, history=[(prompt, output)], state=state)
        output.append(int(draw.token_ids[0]))
        state = draw.states
    return output


@pytest.mark.parametrize("lag", [0, 1], ids=["told at once", "overlapped"])
def test_requests_draw_what_they_draw_alone(lag: int) -> None:
    held, told = [request(str(at), PROMPTS[at], FIELDS[at]) for at in range(3)], [[], [], []]
    for _ in range(10):
        step(held, told)
        for each, output in zip(held, told, strict=True):
            each.output_ids[:] = type(each.output_ids)("q", output[: len(output) - lag])
    assert told == [redrawn(prompt, fields, 10) for prompt, fields in zip(PROMPTS, FIELDS, strict=True)]


def test_every_parameter_draws_in_a_batch_of_16_what_it_draws_alone() -> None:
    fields = [*requests(), *operators_own(), *company()]
    held = [request(f"r{at}", PROMPTS[at % 3], each) for at, each in enumerate(fields)]
    told: list[list[int]] = [[] for _ in held]
    for first in range(0, len(held), 16):
        some, outputs = held[first : first + 16], told[first : first + 16]
        for _ in range(10):
            step(some, outputs)
            for each, output in zip(some, outputs, strict=True):
                each.output_ids[:] = type(each.output_ids)("q", output)
    assert told == [redrawn(PROMPTS[at % 3], each, 10) for at, each in enumerate(fields)]
    assert sum(map(len, told)) > 1000


@pytest.mark.parametrize("fields", [FIELDS[0], {"seed": 6, "mirostat": 2, "mirostat_tau": 2.0}], ids=str)
def test_rows_that_read_their_prompt_are_not_drawn_and_retraction_changes_nothing(fields: dict[str, Any]) -> None:
    held, told = [request("a", PROMPTS[0], fields)], [[]]
    step(held, told, chunks={0: 4})
    assert told == [[]]
    for _ in range(4):
        step(held, told)
        held[0].output_ids[:] = type(held[0].output_ids)("q", told[0])
    step(held, told, chunks={0: 3})
    step(held, told)
    assert told == [redrawn(PROMPTS[0], fields, 5)]


def test_without_a_seed_it_follows_from_the_id() -> None:
    texts = []
    for rid in ("a", "a", "b"):
        held, told = [request(rid, PROMPTS[0], {"temperature": 5.0})], [[]]
        for _ in range(5):
            step(held, told)
            held[0].output_ids[:] = type(held[0].output_ids)("q", told[0])
        texts.append(told[0])
    assert texts[0] == texts[1] != texts[2]


def test_a_request_that_is_gone_leaves_nothing() -> None:
    gc.collect()
    before = len(sglang._rows(V))
    held, told = [request("gone", PROMPTS[0], FIELDS[0])], [[]]
    step(held, told)
    assert len(sglang._rows(V)) == before + 1
    del held
    gc.collect()
    assert len(sglang._rows(V)) == before


def test_what_fails_aborts_its_own_request() -> None:
    held = [request(str(at), PROMPTS[at], FIELDS[at]) for at in range(3)]
    held[0].sampling_params.custom_params["tirage"] = {"top_pp": 1}
    logits = torch.stack([logits_of(prompt) for prompt in PROMPTS])
    logits[1, 5] = torch.nan
    for each in held:
        each.kv.kv_committed_len = len(each.origin_input_ids)
    expected = redrawn(PROMPTS[2], FIELDS[2], 1)
    apply_custom_logit_processor(logits, batch_info(held))
    assert [type(each.to_finish) for each in held] == [FINISH_ABORT, FINISH_ABORT, type(None)]
    assert "did you mean 'top_p'" in held[0].to_finish.message
    assert "cannot be drawn: non_finite_logits" in held[1].to_finish.message
    assert logits[2].isfinite().nonzero().flatten().tolist() == expected


def test_an_engine_that_counts_otherwise_aborts_with_both_versions() -> None:
    class Other:
        rid, origin_input_ids, output_ids, to_finish = "x", [1], [], None

    given = {"tirage": FIELDS[0], "__req__": Other()}
    logits = logits_of([1])[None]
    assert sglang.TirageLogitProcessor()(logits, [given, None]) is logits
    assert "must run in SGLang 0.5.23, got 0.5.23 (it counts tokens otherwise)" in given["__req__"].to_finish.message


@pytest.mark.parametrize(("release", "known"), [("0.5.22", False), ("0.5.230", False), ("0.5.23.post1", True)])
def test_another_release_is_refused_with_both_versions(
    monkeypatch: pytest.MonkeyPatch, release: str, known: bool
) -> None:
    monkeypatch.setattr(sglang, "_installed", lambda: release)
    refuses("" if known else rf"must run in SGLang 0\.5\.23, got {release} \(it was not tried\)")


@pytest.mark.parametrize("algorithm", ["EAGLE", "NGRAM"])
def test_speculative_decoding_is_refused(monkeypatch: pytest.MonkeyPatch, algorithm: str) -> None:
    """SGLang accepts drafts by its own samplers: a processor that draws would be asked for the first token alone."""
    monkeypatch.setattr(get_context(), "_config_bags", {"spec": SimpleNamespace(speculative_algorithm=None)})
    refuses("")
    monkeypatch.setattr(get_context(), "_config_bags", {"spec": SimpleNamespace(speculative_algorithm=algorithm)})
    refuses(f"speculative decoding must be off where tirage draws in SGLang, got {algorithm}")
    _without_a_server(monkeypatch)
    with pytest.raises(ParamsError, match="speculative decoding must be off"):
        sglang.TirageSampler()


def test_sglang_on_mlx_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_USE_MLX", "1")
    refuses("SGLANG_USE_MLX must be off")


def refuses(says: str) -> None:
    """A request is refused when it is checked, and aborted where it was not; neither where `says` is empty."""
    asked = SGLangParams(custom_params={"tirage": FIELDS[0]})
    held = request("late", PROMPTS[0], FIELDS[0])
    held.kv.kv_committed_len = len(PROMPTS[0])
    apply_custom_logit_processor(logits_of(PROMPTS[0])[None], batch_info([held]))
    if says:
        with pytest.raises(ParamsError, match=says):
            sglang._check_request(None, asked, V)
        assert re.search(says, held.to_finish.message)
    else:
        sglang._check_request(None, asked, V)
        assert held.to_finish is None


def test_what_would_not_tell_texts_apart_is_refused() -> None:
    given = {"tirage": {"seed": 3}}
    with pytest.raises(ParamsError, match="n must be 1 where tirage is given a seed, got 2"):
        sglang._check_request(None, SGLangParams(n=2, custom_params=given), V)
    with pytest.raises(ParamsError, match="beam_width of SGLang must be 1 where tirage draws, got 3"):
        sglang._check_request(None, SGLangParams(beam_width=3, custom_params=given), V)
    sglang._check_request(None, SGLangParams(n=2, custom_params={"tirage": {"top_p": 0.9}}), V)
    sglang._check_request(None, SGLangParams(n=2, beam_width=3, custom_params={"other": 1}), V)


def test_sglang_itself_replaces_the_backend_where_it_hands_out_seeds() -> None:
    """Why the page says that the backend's draws have no seeds."""
    view = SimpleNamespace(enable_deterministic_inference=True, sampling_backend="tirage")
    assert _deterministic_sampling_backend(view) == {"sampling_backend": "pytorch"}


def test_rows_without_parameters_are_left_alone() -> None:
    logits = torch.zeros(2, V)
    assert sglang.TirageLogitProcessor()(logits, [None, {"other": 1}]) is logits
    assert sglang.TirageLogitProcessor()(logits) is logits


def test_the_plugin_checks_requests_and_adds_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    sglang.register()
    HookRegistry.apply_hooks()
    for given, says in (({"top_pp": 1}, "top_p"), ({"max_tokens": 4}, "give it to SGLang"), ("{", "JSON")):
        with pytest.raises(ValueError, match=says):
            SGLangParams(custom_params={"tirage": given}).verify(V)
    with pytest.raises(ParamsError, match="logit_bias"):
        SGLangParams(custom_params={"tirage": {"logit_bias": {"300": 1.0}}}).verify(V)
    SGLangParams(custom_params={"tirage": FIELDS[0]}).verify(V)
    SGLangParams(custom_params={"other": 1}).verify(V)
    _without_a_server(monkeypatch)
    assert isinstance(create_sampler("tirage"), sglang.TirageSampler)


def _without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """What SGLang's Sampler asks its server for when it is made."""
    features = SimpleNamespace(sampling_mask_max_tokens=0)
    deterministic = SimpleNamespace(rl_on_policy_target=None, enable_deterministic_inference=True)
    kernel = SimpleNamespace(sampling_backend="tirage")
    monkeypatch.setattr(sglang_sampler, "get_server_args", lambda: None)
    monkeypatch.setattr(sglang_sampler, "is_dp_attention_enabled", lambda: False)
    monkeypatch.setattr(
        sglang_sampler, "get_parallel", lambda: SimpleNamespace(tp_group=SimpleNamespace(device_group=None))
    )
    monkeypatch.setattr(
        sglang_sampler,
        "get_exec",
        lambda: SimpleNamespace(features=features, deterministic=deterministic, kernel=kernel),
    )


@pytest.mark.parametrize("seeded", [True, False])
def test_the_backend_draws_with_sglangs_own_parameters(monkeypatch: pytest.MonkeyPatch, seeded: bool) -> None:
    _without_a_server(monkeypatch)
    logits = torch.stack([logits_of(prompt) for prompt in PROMPTS])
    info = SimpleNamespace(
        has_custom_logit_processor=False,
        grammars=None,
        temperatures=torch.tensor([[0.5], [1.0], [3.0]]),
        top_ks=torch.tensor([TOP_K_ALL, 1, 40], dtype=torch.int32),
        top_ps=torch.tensor([0.75, 1.0, 1.0]),
        min_ps=torch.tensor([0.0, 0.0, 0.125]),
        sampling_seed=torch.tensor([11, 12, 13]) if seeded else None,
    )
    asked = [
        SamplingParams(semantics="sglang", temperature=0.5, top_p=0.75, seed=11),
        SamplingParams(semantics="sglang", temperature=1.0, top_k=1, seed=12),
        SamplingParams(semantics="sglang", temperature=3.0, top_k=40, min_p=0.125, seed=13),
    ]
    out = SimpleNamespace(next_token_logits=logits.clone())
    torch.manual_seed(5)
    tokens = sglang.TirageSampler()(out, info, True, [2, 0, 0], [None] * 3, torch.tensor([6, 2, 0]))
    assert tokens.dtype == torch.int32
    if seeded:
        assert tokens.tolist() == tirage.sample(logits, asked, step=[6, 2, 0]).token_ids.tolist()
        expected = torch.log_softmax(logits / info.temperatures, dim=-1)[range(3), tokens.long()]
        torch.testing.assert_close(out.next_token_logprobs, expected)
    else:
        torch.manual_seed(5)
        assert sglang.draw(logits, info, torch.tensor([6, 2, 0])).tolist() == tokens.tolist()


def test_a_row_without_a_token_gets_the_first(caplog: pytest.LogCaptureFixture) -> None:
    one = torch.ones(1)
    info = SimpleNamespace(
        temperatures=one[:, None], top_ks=one.int() * 5, top_ps=one, min_ps=one * 0, sampling_seed=one.long()
    )
    assert sglang.draw(torch.full((1, V), -torch.inf), info, torch.tensor([0])).tolist() == [0]
    assert "row 0 cannot be drawn: no_allowed_token" in caplog.text
