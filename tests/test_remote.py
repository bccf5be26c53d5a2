"""A model behind our own server, in each dialect that it speaks: what comes back is what the model says here."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from servers import shared, slow_server

import tirage
from tirage import (
    LLM,
    GuidedDecodingParams,
    ParamsError,
    Prompt,
    RequestOutputKind,
    SamplingParams,
    TirageError,
    cli,
)
from tirage.remote import REMOTE_DIALECTS, RemoteLLM
from tirage.remote.entries import UNKNOWN_ID, UNKNOWN_RANK
from tirage.remote.llm import NotRemoteError
from tirage.text import Stop

SPOKEN = ("vllm", "sglang", "openai", "tirage")
SEMANTICS = {"vllm": "vllm", "sglang": "sglang", "openai": "openai", "tirage": "gemma-topp"}
ABORTS = 'tirage_aborts_total{reason="disconnect"}'
TALK = [{"role": "user", "content": "Hello there"}]


@cache
def here() -> LLM:
    return LLM("tiny")


@pytest.fixture(scope="module", params=SPOKEN)
def dialect(request: Any) -> str:
    return request.param


@pytest.fixture(scope="module")
def llm(dialect: str) -> Iterator[Any]:
    with LLM(shared().url, dialect=dialect, timeout_s=120) as opened:
        assert isinstance(opened, RemoteLLM)
        yield opened


def params(dialect: str, **more: Any) -> SamplingParams:
    mode = "processed" if dialect == "sglang" and "logprobs" in more else "raw"
    given = {"seed": 7, "temperature": 0.9, "top_p": 0.9, "max_tokens": 12, "logprobs_mode": mode, **more}
    return SamplingParams(semantics=SEMANTICS[dialect], **given)


def known(sample: Any, *, ids: bool = True) -> Any:
    """A sample without what no server tells: whether its constraint is complete, sums without logprobs."""
    entries = None if sample.logprobs is None else [entry_of(each, ids=ids) for each in sample.logprobs]
    return (sample.text, sample.token_ids if ids else (), sample.finish_reason, sample.stop, entries)


def entry_of(entry: Any, *, ids: bool) -> Any:
    """An entry by its texts and log-probabilities, with the ids that a server tells of drawn tokens."""
    top = [(each.text, each.bytes, pytest.approx(each.logprob), each.rank) for each in entry.top]
    return (entry.token_id if ids else None, entry.text, entry.bytes, pytest.approx(entry.logprob), top)


@pytest.mark.parametrize("prompt", ["Once upon a time", [1, 40, 300, 22], ""])
def test_text_ids_stop_and_counts_are_those_of_the_model(llm: Any, dialect: str, prompt: Any) -> None:
    given = params(dialect, n=2, stop=["."], max_tokens=30)
    found, expected = llm.generate(prompt, given)[0], here().generate(prompt, given)[0]
    ids = dialect != "openai"
    assert [known(each, ids=ids)[:3] for each in found.samples] == [known(e, ids=ids)[:3] for e in expected.samples]
    if ids:
        assert list(map(known, found.samples)) == list(map(known, expected.samples))
        assert found.prompt_token_ids == expected.prompt_token_ids
    assert replace(found.usage, cached_tokens=0) == replace(expected.usage, cached_tokens=0)
    assert (found.prompt, found.seed) == (expected.prompt, expected.seed)


def test_logprobs_are_those_of_the_model(llm: Any, dialect: str) -> None:
    given = params(dialect, logprobs=3, temperature=2.0)
    found, expected = llm.generate("Once upon a time", given)[0], here().generate("Once upon a time", given)[0]
    ids = dialect != "openai"
    assert known(found.samples[0], ids=ids)[4] == known(expected.samples[0], ids=ids)[4]
    assert found.cumulative_logprob == pytest.approx(expected.cumulative_logprob, abs=1e-4)
    ranks = zip(found.logprobs, expected.logprobs, strict=True)
    assert all(one.rank in {other.rank, UNKNOWN_RANK} for one, other in ranks)
    assert any(one.rank == 1 for one in found.logprobs)
    if not ids:
        assert {each.token_id for each in found.logprobs} == {UNKNOWN_ID}


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_a_stream_joins_to_the_whole_answer(llm: Any, dialect: str, kind: RequestOutputKind) -> None:
    given = params(dialect, n=2, logprobs=1, output_kind=kind)
    whole = llm.generate("One day", given)[0]
    deltas = list(llm.stream("One day", given))
    last = deltas[-1].completion
    assert last is not None
    assert (last.samples, last.usage.total_tokens) == (whole.samples, whole.usage.total_tokens)
    assert last.timings.first_token_s is not None
    if kind is RequestOutputKind.FINAL_ONLY:
        assert len(deltas) == 1
        return
    assert len(deltas) > 4
    assert all((delta.completion is not None) == (kind is RequestOutputKind.CUMULATIVE) for delta in deltas[:-1])
    for sample in whole.samples:
        own = [delta for delta in deltas if delta.index == sample.index]
        assert "".join(delta.text for delta in own) == sample.text
        assert sum((delta.token_ids for delta in own), ()) == sample.token_ids
        assert sum((delta.logprobs for delta in own), ()) == sample.logprobs
        assert [delta.finish_reason for delta in own] == [None] * (len(own) - 1) + [sample.finish_reason]


def test_a_chat_says_what_the_model_says(llm: Any, dialect: str) -> None:
    given = params(dialect, logprobs=2)
    found, expected = llm.chat(TALK, given), here().chat(TALK, given)
    assert (found.text, found.finish_reason) == (expected.text, expected.finish_reason)
    assert found.usage.completion_tokens == expected.usage.completion_tokens
    assert [each.logprob for each in found.logprobs] == pytest.approx([each.logprob for each in expected.logprobs])
    deltas = list(llm.chat_stream(TALK, given))
    assert "".join(delta.text for delta in deltas) == found.text
    assert deltas[-1].completion.samples == found.samples


def test_a_chat_and_its_stream_tell_the_token_that_ended_the_text(llm: Any, dialect: str) -> None:
    eos = here().generation_config["eos_token_id"]
    semantics = "canonical" if dialect == "tirage" else SEMANTICS[dialect]
    bias = {eos if isinstance(eos, int) else eos[0]: 100.0}
    given = SamplingParams(semantics=semantics, seed=7, max_tokens=5, logit_bias=bias)
    told = here().chat(TALK, given).stop
    assert told is not None
    assert told.kind == "eos"
    assert llm.chat(TALK, given).stop == told
    *_, last = llm.chat_stream(TALK, given)
    assert (last.stop, last.completion.stop) == (told, told)


def test_a_chat_goes_on_with_its_last_message_where_the_server_has_the_field(llm: Any, dialect: str) -> None:
    given, begun = params(dialect), [*TALK, {"role": "assistant", "content": "I am"}]
    if dialect not in {"vllm", "sglang", "tirage"}:
        with pytest.raises(ParamsError, match="continue_final_message must be False for"):
            llm.chat(begun, given, continue_final_message=True)
        return
    expected = here().chat(begun, given, continue_final_message=True).text
    assert llm.chat(begun, given, continue_final_message=True).text == expected
    assert "".join(delta.text for delta in llm.chat_stream(begun, given, continue_final_message=True)) == expected


def test_a_request_without_a_seed_reports_the_one_that_gives_it_again(llm: Any, dialect: str) -> None:
    first = llm.generate("Once upon a time", params(dialect, seed=None, temperature=2.0))[0]
    again = llm.generate("Once upon a time", params(dialect, seed=first.seed, temperature=2.0))[0]
    assert again.samples == first.samples or (again.text, again.token_ids) == (first.text, first.token_ids)
    plain = llm.generate("Once upon a time")[0]
    assert plain.usage.completion_tokens <= 16
    assert plain.text != llm.generate("Once upon a time")[0].text


def test_many_prompts_come_back_in_order_and_event_loops_may_stream(llm: Any, dialect: str) -> None:
    each = [params(dialect, seed=seed) for seed in range(6)]
    texts = [found.text for found in llm.generate(["Once"] * 6, each)]
    assert texts == [found.text for found in here().generate(["Once"] * 6, each)]

    async def one(given: SamplingParams) -> str:
        return "".join([delta.text async for delta in llm.astream("Once", given)])

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*map(one, each))

    assert asyncio.run(all_of_them()) == texts


def test_constraints_go_along_and_what_cannot_be_asked_for_is_refused_by_name(llm: Any, dialect: str) -> None:
    guided = GuidedDecodingParams(regex="[ab]{3}")
    given = params(dialect, guided_decoding=guided, temperature=1.0, top_p=1.0)
    if dialect == "openai":
        with pytest.raises(ParamsError, match=r"guided_decoding must be None for OpenAI, whose /v1/completions has no"):
            llm.generate("Once", given)
    else:
        assert llm.generate("Once", given)[0].text == here().generate("Once", given)[0].text
    for name, value in (("embeds", [[0.0]]), ("images", [b"x"])):
        with pytest.raises(ParamsError, match=f"prompt {name} must be left out for a server"):
            llm.generate(Prompt(**{"text" if name == "images" else "salt": "x", name: value}))
    with pytest.raises(ParamsError, match="return_hidden_states must be False"):
        llm.generate("Once", given, return_hidden_states=True)


def test_what_needs_the_model_itself_is_refused_by_name(llm: Any) -> None:
    given = {"generate", "stream", "astream", "chat", "chat_stream", "close", "max_running"}
    theirs = {name for name in dir(LLM) if not name.startswith("_")} - given
    assert theirs > {"explain", "beam_search", "constrain", "request"}
    for name in [*sorted(theirs), "engine", "tokenizer", "model"]:
        with pytest.raises(NotRemoteError, match=f"^{name} must be asked of a model in this process"):
            getattr(llm, name)
    assert not hasattr(llm, "engine")
    with pytest.raises(AttributeError, match="has no attribute 'generat'; did you mean 'generate'"):
        _ = llm.generat


def test_a_refusal_of_the_server_is_a_params_error_with_its_message() -> None:
    with LLM(shared().url, dialect="openai") as llm, pytest.raises(ParamsError, match="refuses the request: prompt"):
        llm.generate([1, 10**6], SamplingParams(semantics="openai"))


def test_prompt_logprobs_come_back_but_not_in_a_stream() -> None:
    given = SamplingParams(prompt_logprobs=2, logprobs=2, seed=1, max_tokens=2)
    expected = here().generate("Once upon a time", given)[0].prompt_logprobs
    assert expected is not None
    for name in ("vllm", "tirage"):
        with LLM(shared().url, dialect=name) as llm:
            found = llm.generate("Once upon a time", given)[0].prompt_logprobs
            assert found is not None
            assert found[0] is None
            for one, other in zip(found[1:], expected[1:], strict=True):
                assert one is not None
                assert other is not None
                assert one.token_id == other.token_id
                assert one.logprob == pytest.approx(other.logprob)
                assert [each.token_id for each in one.top] == [each.token_id for each in other.top]
            with pytest.raises(ParamsError, match="prompt_logprobs must be None to stream"):
                llm.stream("Once", given)


def test_our_server_reads_everything_in_its_own_dialect() -> None:
    given = SamplingParams(
        seed=3, dry_multiplier=0.8, min_p=0.02, xtc_probability=0.5, top_n_sigma=2.0, bad_words=["girl"],
        allowed_token_ids=range(2, 1200), no_repeat_ngram_size=3, max_tokens=20, semantics="canonical", logprobs=1,
        logprob_token_ids=[5, 9],
    )  # fmt: skip
    with LLM(shared().url, dialect="tirage") as llm:
        found, expected = llm.generate("Once", given)[0], here().generate("Once", given)[0]
        assert (found.text, found.token_ids) == (expected.text, expected.token_ids)
        assert found.logprobs is not None
        assert expected.logprobs is not None
        assert [dict(each.given) for each in found.logprobs] == [
            {token: pytest.approx(value) for token, value in each.given} for each in expected.logprobs
        ]
        chat = given.replace(logprob_token_ids=())
        assert llm.chat(TALK, chat).text == here().chat(TALK, chat).text


# Tokens at which the constraint would end early are unlikely.
OPEN = {"max_tokens": 5, "logit_bias": {265: -60.0, 2: -60.0, 1: -60.0}, "logprobs": 1}
STOPPED = {
    "by a complete constraint": {"guided_decoding": GuidedDecodingParams(regex="[ab]{3}")},
    "by closing": {"guided_decoding": GuidedDecodingParams(regex="([ab]*cde)?"), "close_grammar": True, **OPEN},
    "by a string": {"stop": ["e"]},
    "by a pattern": {"stop_pattern": "[aeiou]"},
    "by a token": {"stop_token_ids": range(2, 1000)},
    "by its limit": {"max_tokens": 3},
}


@pytest.mark.parametrize("name", STOPPED)
def test_our_server_tells_in_its_own_dialect_what_ended_a_text(name: str) -> None:
    given = SamplingParams(**{"seed": 3, "max_tokens": 20, **STOPPED[name]})
    expected = here().generate("Once", given)[0].samples
    with LLM(shared().url, dialect="tirage") as llm:
        assert [each.stop for each in llm.generate("Once", given)[0].samples] == [each.stop for each in expected]
        *_, last = llm.stream("Once", given)
        assert last.stop == expected[0].stop
        told = here().chat(TALK, given).stop
        assert llm.chat(TALK, given).stop == told
        *_, last = llm.chat_stream(TALK, given)
        assert last.stop == told


def test_a_constraint_that_was_closed_in_time_is_told_as_such() -> None:
    given = SamplingParams(**{"seed": 3, **STOPPED["by closing"]})
    assert here().generate("Once", given)[0].stop == Stop(kind="grammar", matched="close_grammar")


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_our_server_tells_in_other_dialects_that_a_constraint_is_complete(name: str) -> None:
    given = params(name, guided_decoding=GuidedDecodingParams(regex="[ab]{3}"), temperature=1.0, top_p=1.0)
    with LLM(shared().url, dialect=name) as llm:
        assert llm.generate("Once", given)[0].stop == Stop(kind="grammar")
        assert llm.chat(TALK, given).stop == Stop(kind="grammar")
        *_, last = llm.chat_stream(TALK, given)
        assert last.stop == Stop(kind="grammar")


@pytest.mark.slow
def test_leaving_a_stream_ends_the_request_on_the_server() -> None:
    with slow_server() as server, LLM(server.url, dialect="vllm") as llm:
        deltas = llm.stream("Once", SamplingParams(max_tokens=500, ignore_eos=True, seed=1))
        next(deltas)
        deltas.close()
        until = time.monotonic() + 60
        while not server.metric(ABORTS) and time.monotonic() < until:
            time.sleep(0.05)
        assert server.metric(ABORTS) == 1


@pytest.mark.slow
def test_the_command_line_asks_a_server() -> None:
    options = ["--seed", "7", "--max-tokens", "12", "--quiet"]
    command = [sys.executable, "-m", "tirage", "generate", "Once upon a time", "--model", shared().url]
    run = subprocess.run([*command, "--dialect", "vllm", *options], capture_output=True, text=True, check=False)
    assert run.stdout.strip("\n") == here().generate("Once upon a time", SamplingParams(seed=7, max_tokens=12))[0].text


REFUSED = {
    ("openai", "--top-k", "5"): "whose /v1/completions has no field for other values, got 5; leave --top-k out",
    ("openai", "--regex", "a+", "--semantics", "openai"): "leave --regex out",
    ("openai", "--no-skip-special-tokens"): "use --skip-special-tokens",
    ("openai", "--max-tokens", "none"): "cannot express this one, got None; leave --max-tokens out",
    ("openai", "--stop=a", "--stop=b", "--stop=c", "--stop=d", "--stop=e"): "stop must hold at most 4 strings",
    ("vllm", "--min-p", "0.1", "--top-k", "5"): "got 'canonical'; use --semantics vllm",
    ("sglang", "--logprobs", "3"): "got 'raw'; use --logprobs-mode processed",
    ("vllm", "--backend", "numpy"): "backend must be left out for the address of a server",
}


@pytest.mark.parametrize("options", REFUSED)
def test_the_command_line_names_the_option_to_change(options: Any, capsys: pytest.CaptureFixture[str]) -> None:
    dialect, *given = options
    with pytest.raises(SystemExit) as ended:
        cli.main(["generate", "Once", "--model", "http://127.0.0.1:9", "--dialect", dialect, *given])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert REFUSED[options] in said
    assert "replace(" not in said


def test_the_signature_of_llm_names_its_options() -> None:
    assert {"tokenizer", "backend", "max_running", "server"} <= set(inspect.signature(LLM).parameters)


def test_every_dialect_is_named_in_the_page() -> None:
    page = (Path(__file__).parents[1] / "docs" / "remote.md").read_text(encoding="utf-8")
    assert [name for name in REMOTE_DIALECTS if f'"{name}"' not in page] == []
    assert issubclass(NotRemoteError, TirageError)
    assert tirage.remote.RemoteLLM is RemoteLLM
