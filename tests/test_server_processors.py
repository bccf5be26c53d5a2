"""A server whose operator's processors hang, fail and lie: each ends its own requests, and nobody else's."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_processors import ALL
from servers import Server

pytestmark = pytest.mark.slow

TIMEOUT_S = 2.0
TEXT = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 60, "sampling_seed": 7, "ignore_eos": True}}
REASONS = {
    "sleeps": f"logits processor 'sleeps' did not return within {TIMEOUT_S:g} s",
    "loops": f"logits processor 'loops' did not return within {TIMEOUT_S:g} s",
    "raises": "logits processor 'raises' failed; the log says more",
    "exits": "logits processor 'exits' failed; the log says more",
    "nan": "logits processor 'nan' failed; the log says more",
    "shape": "logits processor 'shape' failed; the log says more",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    flags = [flag for name in ALL for flag in ("--logits-processor", f"{name}=hostile_processors:{name}")]
    options = ["--enable-custom-logit-processor", "--processor-timeout", str(TIMEOUT_S), "--processor-cool-down", "60"]
    with Server("tiny", *flags, *options, folders=(Path(__file__).parent,)) as running:
        yield running


def ask(server: Server, name: str, *, mark: Any = 0, **sampling: Any) -> Any:
    params = {"max_new_tokens": 8, "custom_params": {"mark": mark, **sampling.pop("args", {})}, **sampling}
    return server.post("/generate", {"text": "One day", "custom_logit_processor": name, "sampling_params": params})


class Neighbour(threading.Thread):
    """A plain request, again and again, until `stop`, and its texts."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.server, self.texts = server, set[str]()
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._ended.is_set():
            self.texts.add(self.server.post("/generate", TEXT).json()["text"])

    def stop(self) -> None:
        self._ended.set()
        self.join()


@pytest.mark.parametrize("name", REASONS)
def test_what_a_processor_breaks_is_called_its_own_and_moves_no_neighbour(server: Server, name: str) -> None:
    expected = server.post("/generate", TEXT).json()["text"]
    neighbour = Neighbour(server)
    try:
        answers = [ask(server, name, mark="neighbour") for _ in range(3)]
        refused = ask(server, name, mark="neighbour")
    finally:
        neighbour.stop()
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["message"]) == (500, "processor_failed", REASONS[name])
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "processor_disabled")
    assert neighbour.texts == {expected}
    assert server.metric("tirage_engine_running") == 0.0
    assert "secret" not in answers[0].text


def test_a_quick_processor_draws_what_it_draws_without_a_limit(server: Server) -> None:
    import tirage

    tirage.register_processor("quick_alone", __import__("hostile_processors").quick, replace=True)
    with tirage.LLM("tiny") as llm:
        params = tirage.SamplingParams(max_tokens=24, seed=5, logits_processors=[("quick_alone", {})])
        expected = llm.generate("One day", params)[0].token_ids
    answer = ask(server, "quick", max_new_tokens=24, sampling_seed=5).json()
    assert tuple(answer["output_ids"]) == tuple(expected)


def test_a_beam_search_with_a_processor_finds_what_it_finds_without_a_limit(server: Server) -> None:
    import tirage

    tirage.register_processor("quick_search", __import__("hostile_processors").quick, replace=True)
    with tirage.LLM("tiny") as llm:
        params = tirage.SamplingParams(logits_processors=[("quick_search", {})], logprobs=2)
        beams = tirage.BeamSearchParams(beam_width=3, max_tokens=24)
        expected = llm.beam_search("One day", beams, sampling=params)[0]
    asked = {"beam_width": 3, "max_new_tokens": 24, "custom_params": {}}
    body = {"text": "One day", "custom_logit_processor": "quick", "return_logprob": True, "top_logprobs_num": 2}
    answers = [server.post("/generate", {**body, "sampling_params": asked}).json() for _ in range(2)]
    for answer in answers:
        assert tuple(answer["output_ids"]) == tuple(expected.token_ids)
        assert [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]] == pytest.approx(
            [entry.logprob for entry in expected.logprobs or ()], abs=1e-3
        )


def test_calls_that_never_return_are_counted_and_their_number_is_limited(server: Server) -> None:
    answers = [ask(server, "sleeps", mark=f"count {mark}") for mark in range(6)]
    assert answers[-1].json()["error"]["message"] == (
        "logits processor 'sleeps' is not called now, for 4 of its calls have never returned"
    )
    assert server.metric("tirage_engine_abandoned_calls") == 4.0
    health = server.get("/health").json()
    assert (health["status"], health["abandoned_processor_calls"]) == ("ready", 4)
    assert "its thread was left behind" in server.log
    assert len(ask(server, "quick").json()["output_ids"]) == 8


def test_all_samples_of_a_request_end_with_their_processor(server: Server) -> None:
    before = server.log.count("its thread was left behind")
    answer = ask(server, "loops", mark="many", n=16)
    assert answer.json()["error"]["message"] == REASONS["loops"]
    assert server.log.count("its thread was left behind") == before + 1


def test_a_beam_search_with_a_processor_that_hangs_ends(server: Server) -> None:
    before = server.log.count("its thread was left behind")
    answer = ask(server, "loops", mark="beams", beam_width=2)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "processor_failed")
    assert server.log.count("its thread was left behind") == before + 1
    assert server.get("/health").status_code == 200


def test_a_client_that_leaves_its_processor_leaves_no_thread_running(server: Server) -> None:
    import httpx

    before = server.metric("tirage_engine_abandoned_calls")
    body = {
        "text": "One day",
        "custom_logit_processor": "loops",
        "sampling_params": {"custom_params": {"mark": "left"}},
    }
    with pytest.raises(httpx.ReadTimeout):
        server.post("/generate", body, timeout=0.2)
    time.sleep(1.5 * TIMEOUT_S)
    # Calls that were left behind earlier may have ended meanwhile.
    assert server.metric("tirage_engine_abandoned_calls") <= before
    assert server.metric("tirage_engine_running") == 0.0
