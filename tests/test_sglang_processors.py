"""Custom logits processors by name: SGLang's class and strings, the built-in ones, and what is refused."""

from __future__ import annotations

import contextlib
import json
import pickle
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from operator_processors import CountingLogitProcessor, DeterministicLogitProcessor
from servers import Server, until

import tirage
from tirage import LLM, ParamsError, SamplingParams
from tirage.compat.sglang import CustomLogitProcessor
from tirage.dialects import DialectError, from_sglang
from tirage.dialects.processors import KNOWN_CLASSES, read_reference
from tirage.engine import Completion, Sample, Tenant, Timings, Usage
from tirage.processors import BUILT_IN, PAST, Past, find_processor, register_processor, unregister_processor
from tirage.server.circuit_breaker import CircuitBreaker
from tirage.server.errors import Refusal
from tirage.server.options import Options
from tirage.server.plugins import load_processors
from tirage.text import Stop

NAMES = ("DeterministicLogitProcessor", "CountingLogitProcessor", "FailingLogitProcessor")
SGLANG_MODULE = "sglang.srt.sampling.custom_logit_processor"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    flags = [f"--logits-processor={name}=operator_processors:{name}" for name in NAMES[::2]]
    flags += ["--logits-processor=counting=operator_processors:CountingLogitProcessor"]
    flags += ["--logits-processor=picky=operator_processors:PickyLogitProcessor"]
    with Server("tiny", "--enable-custom-logit-processor", *flags, folders=(Path(__file__).parent,)) as running:
        yield running


def ask(server: Server, reference: Any, params: dict[str, Any] | None, **body: Any) -> Any:
    sampling = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True, "custom_params": params}
    asked = {"text": "One day", "custom_logit_processor": reference, "sampling_params": sampling, **body}
    return server.post("/generate", asked)


def reference_bytes(module: str, name: str, *, protocol: int = 4) -> bytes:
    """What SGLang's `to_str` puts into its string for a class that can be imported."""
    texts = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() + b"\x94" for text in (module, name))
    return b"\x80" + bytes([protocol]) + texts + b"\x93\x94."


def as_string(data: bytes) -> str:
    return json.dumps({"callable": data.hex()})


# --- the documented example --------------------------------------------------------------------------------------


def test_a_processor_is_sent_as_its_name_alone() -> None:
    assert json.loads(DeterministicLogitProcessor().to_str()) == {"processor": "DeterministicLogitProcessor"}
    assert json.loads(CountingLogitProcessor.to_str()) == {"processor": "counting"}
    with pytest.raises(TypeError, match="abstract"):
        CustomLogitProcessor()  # type: ignore[abstract]


def test_the_documented_processor_always_draws_its_token(server: Server) -> None:
    answer = ask(server, DeterministicLogitProcessor().to_str(), {"token_id": 5}, return_logprob=True).json()
    assert answer["output_ids"] == [5] * 6
    assert answer["meta_info"]["output_token_logprobs"] == [[0.0, 5, None]] * 6


def test_neighbours_do_not_see_what_a_processor_writes(server: Server) -> None:
    sampling = {"sampling_seed": 4, "max_new_tokens": 6}
    alone = server.post("/generate", {"text": "The dog", "sampling_params": sampling}).json()
    body = {
        "text": ["The dog", "One day", "The dog", "A cat"],
        "custom_logit_processor": [None, "DeterministicLogitProcessor", None, "DeterministicLogitProcessor"],
        "sampling_params": [
            sampling | ({} if i % 2 == 0 else {"custom_params": {"token_id": 40 + i}}) for i in range(4)
        ],
    }
    answers = server.post("/generate", body).json()
    assert [one["output_ids"] for one in answers] == [alone["output_ids"], [41] * 6, alone["output_ids"], [43] * 6]


def test_the_callers_logits_are_left_alone() -> None:
    register_processor("deterministic", DeterministicLogitProcessor())
    try:
        logits = np.linspace(-1, 1, 20, dtype=np.float32).reshape(2, 10)
        before = logits.copy()
        params = SamplingParams(logits_processors=[("deterministic", {"token_id": 7})])
        drawn = tirage.sample(logits, [params, SamplingParams(temperature=0)])
        assert drawn.token_ids.tolist() == [7, 9]
        assert np.array_equal(logits, before)
    finally:
        unregister_processor("deterministic")


def test_a_processor_sees_its_requests_tokens(server: Server) -> None:
    answer = ask(server, "counting", None).json()
    first = answer["meta_info"]["prompt_tokens"]
    assert answer["output_ids"] == list(range(first, first + 6))
    refused = ask(server, "counting", {"other": 1})
    assert refused.status_code == 400
    assert "declares" in refused.json()["error"]["message"]


def test_a_processor_that_fails_ends_its_own_request(server: Server) -> None:
    both = ask(server, ["FailingLogitProcessor", None], None, text=["One day", "The dog"], sampling_params=[
        {"max_new_tokens": 4, "custom_params": {"fail": True}}, {"max_new_tokens": 4},
    ]).json()  # fmt: skip
    assert both[0]["meta_info"]["finish_reason"]["type"] == "error"
    assert both[0]["meta_info"]["finish_reason"]["err_type"] == "processor_failed"
    assert len(both[1]["output_ids"]) == 4


def test_three_failures_are_enough_for_one_client_and_its_arguments(server: Server) -> None:
    name, mine = "FailingLogitProcessor", {"headers": {"authorization": "Bearer mine"}}

    def answer(params: dict[str, Any], **options: Any) -> Any:
        sampling = {"temperature": 0, "max_new_tokens": 2, "custom_params": params}
        body = {"text": "One day", "custom_logit_processor": name, "sampling_params": sampling}
        return server.post("/generate", body, **options)

    counted = f'tirage_processor_failures_total{{processor="{name}"}}'
    settle(server)
    before = server.metric(counted)
    for _ in range(3):
        failed = answer({"fail": True, "other": 1}, **mine)
        assert (failed.status_code, failed.json()["error"]["code"]) == (500, "processor_failed")
        settle(server)
    refused = answer({"other": 1, "fail": True}, **mine)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "processor_disabled")
    assert 0 < int(refused.headers["retry-after"]) <= 30
    assert name in refused.json()["error"]["message"]
    assert answer({"fail": False, "other": 1}, **mine).status_code == 200
    assert answer({"fail": True, "other": 1}).status_code == 500
    assert ask(server, "counting", None).status_code == 200
    settle(server)
    assert server.metric(counted) == before + 4
    assert f"warning: logits processor '{name}' failed 3 times in a row" in server.log


def settle(server: Server) -> None:
    """Waits until all that was answered is counted, which is a moment after the answer."""
    until(lambda: server.metric("tirage_requests_in_flight") == 0, server, "idle")


def test_an_operators_own_check_makes_bad_arguments_the_clients_fault(server: Server) -> None:
    assert ask(server, "picky", {"token_id": 6}).json()["output_ids"] == [6] * 6
    for params, words in (({"token_id": 5}, "token_id must be even, got 5"), ({}, "KeyError: 'token_id'")):
        for _ in range(4):
            refused = ask(server, "picky", params)
            assert refused.status_code == 400
            assert f"arguments of processor 'picky' must pass its check: {words}" in refused.json()["error"]["message"]
    assert ask(server, "picky", {"token_id": 6}).status_code == 200


# --- strings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", KNOWN_CLASSES, ids=lambda known: known[1])
def test_a_reference_to_a_class_of_sglangs_is_its_built_in_likeness(known: tuple[str, str]) -> None:
    assert read_reference(as_string(reference_bytes(*known))) == KNOWN_CLASSES[known]
    assert find_processor(KNOWN_CLASSES[known][0]).name in BUILT_IN


def test_a_string_of_sglangs_works_over_http(server: Server) -> None:
    text = as_string(reference_bytes(SGLANG_MODULE, "DisallowedTokensLogitsProcessor"))
    plain = server.post("/generate", {"text": "One day", "sampling_params": {"temperature": 0, "max_new_tokens": 6}})
    first = plain.json()["output_ids"][0]
    answer = ask(server, text, {"token_ids": [first]}).json()
    assert first not in answer["output_ids"]


HARMLESS = reference_bytes(SGLANG_MODULE, "DisallowedTokensLogitsProcessor")
HOSTILE: list[Any] = [
    5,
    "",
    "x" * 5000,
    "no_such_processor",
    "{",
    "[]",
    "{}",
    '{"processor": 5}',
    '{"processor": "no_such"}',
    '{"processor": "forced_token", "callable": "00"}',
    '{"callable": 5}',
    '{"callable": "zz"}',
    '{"callable": "0"}',
    as_string(b""),
    as_string(b"."),
    as_string(HARMLESS[:-1]),
    as_string(HARMLESS + b"."),
    as_string(HARMLESS[:-1] + b")R."),
    as_string(b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x04true\x94\x85\x94R\x94."),
    as_string(b"cos\nsystem\n(S'true'\ntR."),
    as_string(reference_bytes("posix", "system")),
    as_string(reference_bytes(SGLANG_MODULE, "CustomLogitProcessor")),
    as_string(reference_bytes("builtins", "eval")),
    as_string(b"\x80\x04\x95" + b"\xff" * 8 + HARMLESS[2:]),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_anything_but_a_plain_reference_is_refused(text: Any) -> None:
    with pytest.raises(DialectError, match="custom_logit_processor must") as caught:
        read_reference(text)
    assert caught.value.param == "custom_logit_processor"
    assert len(str(caught.value)) < 400


def read_all() -> None:
    for text in [*HOSTILE, as_string(HARMLESS)]:
        with contextlib.suppress(DialectError):
            read_reference(text)


def test_no_string_is_ever_unpacked() -> None:
    found: list[str] = []
    here = threading.get_ident()

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if watching and threading.get_ident() == here and event in {"pickle.find_class", "os.system", "exec", "import"}:
            found.append(event)

    watching = False
    read_all()
    sys.addaudithook(watch)
    watching = True
    read_all()
    watching = False
    assert found == []


def test_the_watch_over_strings_can_see() -> None:
    seen: list[str] = []
    watching = True

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if watching and event == "pickle.find_class":
            seen.append(args[0])

    sys.addaudithook(watch)
    pickle.loads(reference_bytes("collections", "OrderedDict"))
    watching = False
    assert seen == ["collections"]


def test_an_operators_module_may_lie_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_the_server.py").write_text("def same(logits, args):\n    return logits\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    load_processors(Options.of(logits_processor=("beside=beside_the_server:same",)))
    try:
        assert find_processor("beside").check is None
    finally:
        unregister_processor("beside")


def test_a_hostile_string_gets_an_answer_over_http(server: Server) -> None:
    for text in HOSTILE[14:]:
        response = ask(server, text, {"token_ids": [1]})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "custom_logit_processor"
    assert ask(server, "counting", None).status_code == 200


# --- those that are always there -----------------------------------------------------------------------------------


def draw(name: str, args: dict[str, Any], *history: Any) -> int:
    logits = np.linspace(-1, 1, 10, dtype=np.float32)
    params = SamplingParams(temperature=0, logits_processors=[(name, args)])
    return int(tirage.sample(logits, params, history=history or None).token_ids[0])


def test_built_in_rules_on_token_ids() -> None:
    assert draw("forced_token", {"token_id": 3}) == 3
    assert draw("allowed_tokens", {"token_ids": [2, 4, 500]}) == 4
    assert draw("disallowed_tokens", {"token_ids": [9, 8, 500]}) == 7
    assert draw("forced_token", {"token_id": 500}) == -1


def test_a_thinking_budget_ends_the_reasoning() -> None:
    args = {"thinking_budget": 2, "think_start_id": 5, "think_end_id": 6}
    assert draw("thinking_budget", args, ([1, 5], [])) == 9
    assert draw("thinking_budget", args, ([1, 5], [3])) == 9
    assert draw("thinking_budget", args, ([1, 5], [3, 3])) == 6
    assert draw("thinking_budget", args, ([1, 5], [3, 3, 6])) == 9
    assert draw("thinking_budget", args, ([5, 1, 1, 6, 5], [3])) == 9
    assert draw("thinking_budget", args, ([1, 2], [3, 3, 3])) == 9
    args |= {"newline_id": 7}
    assert draw("thinking_budget", args, ([1, 5], [3, 3])) == 7
    assert draw("thinking_budget", args, ([1, 5], [3, 3, 7])) == 6


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("forced_token", {}, "argument token_id of processor 'forced_token' must be given"),
        ("forced_token", {"token_id": -1}, "must be a token id, got -1"),
        ("forced_token", {"token_id": True}, "must be a token id, got True"),
        ("forced_token", {"token": 1}, "got 'token'"),
        ("allowed_tokens", {"token_ids": []}, "must be a list of 1 to 4096 token ids"),
        ("disallowed_tokens", {"token_ids": 5}, "must be a list of 1 to 4096 token ids"),
        ("disallowed_tokens", {"token_ids": [1, "2"]}, "must be a token id, got '2'"),
        (
            "thinking_budget",
            {"thinking_budget": -1, "think_start_id": 1, "think_end_id": 2},
            "number of tokens, got -1",
        ),
        ("thinking_budget", {"thinking_budget": 1, "think_start_id": 1}, "think_end_id of processor"),
        ("forced_token", {"token_id": 1, PAST: 3}, f"got '{PAST}'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_before_anything_runs(
    name: str, args: dict[str, Any], message: str
) -> None:
    with pytest.raises(ParamsError, match=message):
        SamplingParams(logits_processors=[(name, args)])


def test_built_in_names_work_on_the_route_and_in_the_dialect(server: Server) -> None:
    assert ask(server, "forced_token", {"token_id": 40}).json()["output_ids"] == [40] * 6
    error = ask(server, "forced_token", {"token_id": -4}).json()["error"]
    assert error["param"] == "sampling_params.custom_params"
    params = from_sglang(
        {"custom_params": {"token_id": 40}, "max_new_tokens": 3}, custom_logit_processor="forced_token"
    )
    assert LLM("tiny").generate("One day", params)[0].token_ids == (40, 40, 40)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("forced_token", {"token_id": 30_000}, "token_id of 'forced_token' must lie in [0, 1536), got 30000; the voc"),
        (
            "allowed_tokens",
            {"token_ids": [1536, 30_000]},
            "token_ids of 'allowed_tokens' must lie in [0, 1536), got 1536",
        ),
        (
            "thinking_budget",
            {"thinking_budget": 5, "think_start_id": 1, "think_end_id": 1536},
            "think_end_id of 'thinking_budget' must lie in [0, 1536), got 1536",
        ),
    ],
)
def test_a_token_that_the_vocabulary_lacks_cannot_be_forced(
    server: Server, name: str, args: dict[str, Any], message: str
) -> None:
    with pytest.raises(ParamsError, match=re.escape(message)):
        LLM("tiny").generate("One day", SamplingParams(logits_processors=[(name, args)]))
    error = ask(server, name, args).json()["error"]
    assert message in error["message"]
    assert error["param"] == "sampling_params.custom_params"


def ended(kind: Any) -> Any:
    """A completion whose one sample ended so."""
    stop = None if kind is None else Stop(kind=kind)
    sample = Sample(
        index=0, text="", token_ids=(), finish_reason=None, stop=stop, logprobs=None, cumulative_logprob=0.0
    )
    return Completion(
        prompt="", prompt_token_ids=(1,), samples=(sample,), seed=0,
        usage=Usage(prompt_tokens=1, completion_tokens=0), timings=Timings(first_token_s=None, total_s=0.0),
    )  # fmt: skip


def test_failures_in_a_row_are_refused_until_time_has_passed_or_forgotten_by_a_success() -> None:
    now = [100.0]
    breaker = CircuitBreaker(10.0, clock=lambda: now[0])
    params = SamplingParams(logits_processors=[("forced_token", {"token_id": 5})])

    def refused(name: str = "a", params: SamplingParams = params) -> bool:
        try:
            breaker.check(params, Tenant(name))
        except Refusal:
            return True
        return False

    for kind, fails in (("processor_failed", 3), ("max_tokens", 0), ("processor_failed", 2), ("abort", 0)):
        now[0] += 20
        for _ in range(fails or 1):
            assert breaker.record(params, Tenant("a"), ended(kind)) is (kind == "processor_failed")
        assert refused() is (fails == 3)
    assert breaker.record(params, Tenant("a"), ended("processor_failed"))
    assert refused()
    assert not refused("b")
    assert not refused(params=SamplingParams(logits_processors=[("forced_token", {"token_id": 6})]))
    assert not refused(params=SamplingParams())
    now[0] += 10
    assert not refused()
    breaker.record(params, Tenant("a"), ended("processor_failed"))
    assert refused()
    now[0] += 10
    breaker.record(params, Tenant("a"), ended("eos"))
    breaker.record(params, Tenant("a"), ended("processor_failed"))
    assert not refused()


def test_clients_that_are_remembered_are_not_endless() -> None:
    breaker = CircuitBreaker(10.0)
    params = [SamplingParams(logits_processors=[("forced_token", {"token_id": n})]) for n in range(1200)]
    for each in params:
        for _ in range(3):
            breaker.record(each, Tenant(), ended("processor_failed"))
    breaker.check(params[0], Tenant())
    with pytest.raises(Refusal, match="failed with them 3 times in a row"):
        breaker.check(params[-1], Tenant())


@pytest.mark.slow
def test_the_past_is_a_pair_of_lists() -> None:
    seen: list[Past] = []

    def look(logits: Any, args: list[dict[str, Any]]) -> Any:
        seen.append(args[0][PAST])
        return logits

    look.wants_past = True  # type: ignore[attr-defined]
    register_processor("looking", look)
    try:
        params = SamplingParams(logits_processors=[("looking", {})])
        tirage.sample(np.zeros(9, np.float32), params, history=[([1, 2], [3])])
    finally:
        unregister_processor("looking")
    assert seen == [Past([1, 2], [3])]
