"""Several keys on one server: nobody learns from the cache what others have asked."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest
import scipy.stats
from servers import shared, slow_server, until

KEYS = ("--api-key", "one", "--api-key", "two", "--api-key", "salted", "--admin-key", "admin")
FLAGS = ("tiny", "--backend", "torch", *KEYS)
TEXT = (
    "Once upon a time there was a clever girl who lived near a quiet river, and every day she went to the old bridge."
)


def cached(key: str, text: str) -> int:
    """The tokens of a prompt that the server did not read again."""
    body = {"text": text, "sampling_params": {"max_new_tokens": 2}}
    answer = shared(*FLAGS).post("/generate", body, headers={"authorization": f"Bearer {key}"})
    return answer.json()["meta_info"]["cached_tokens"]


@pytest.mark.slow
def test_a_prefix_is_shared_within_a_key_and_never_across() -> None:
    assert cached("one", TEXT) == 0
    assert cached("one", TEXT) > 0
    assert cached("two", TEXT) == 0
    assert cached("two", TEXT) > 0


@pytest.mark.slow
def test_metrics_count_the_tokens_that_were_not_read_again() -> None:
    server = shared(*FLAGS)
    headers = {"authorization": "Bearer admin"}

    def total() -> float:
        lines = server.get("/metrics", headers=headers).text.splitlines()
        return next(float(line.split(" ")[1]) for line in lines if line.startswith("tirage_engine_cached_tokens_total"))

    cached("one", TEXT)
    before = total()
    found = cached("one", TEXT)
    assert found > 0
    assert total() - before == found


def seconds(key: str, text: str) -> float:
    """How long the server takes to the first token of a prompt."""
    began = time.perf_counter()
    cached(key, text)
    return time.perf_counter() - began


def story(number: int) -> str:
    """A prompt of several hundred tokens, from its beginning unlike those of other numbers."""
    words = np.random.default_rng(number).choice(TEXT.rstrip(".").split(), 200)
    return f"{number} {' '.join(words)}"


def chance(first: Sequence[float], second: Sequence[float]) -> float:
    """The probability by which two samples of one law would differ so much in rank (Mann and Whitney, two-sided)."""
    return float(scipy.stats.mannwhitneyu(first, second).pvalue)


@pytest.mark.slow
def test_the_time_to_a_token_says_nothing_of_what_another_key_has_asked() -> None:
    again, theirs, unseen = list[float](), list[float](), list[float]()
    for number in range(0, 600, 3):
        seconds("one", story(number))
        seconds("one", story(number + 1))
        again.append(seconds("one", story(number)))
        theirs.append(seconds("two", story(number + 1)))
        unseen.append(seconds("two", story(number + 2)))
        # The clock can tell a prompt that was kept from one that was not, or its silence would mean nothing. On a busy
        # machine that takes more of them.
        if len(unseen) >= 30 and chance(again, unseen) < 1e-4:
            break
    assert chance(again, unseen) < 1e-4
    assert chance(theirs, unseen) > 1e-6


@pytest.mark.slow
def test_only_the_admin_key_sees_how_much_was_found_in_the_cache() -> None:
    server = shared(*FLAGS)
    telling = {
        "tirage_cached_tokens_total",
        *(f"tirage_engine_{name}_total" for name in ("cached_tokens", "prompt_tokens", "read_s")),
    }

    def names(key: str) -> set[str]:
        page = server.get("/metrics", headers={"authorization": f"Bearer {key}"}).text
        return {line.split(" ")[0] for line in page.splitlines() if not line.startswith("#")}

    assert not telling & names("one")
    assert telling <= names("admin")
    assert telling <= set(shared().metrics())


ROUTES = {
    "/generate": {"text": f"{TEXT} It was old.", "sampling_params": {"max_new_tokens": 2}},
    "/v1/completions": {"prompt": f"{TEXT} It was new.", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 2},
    "/v1/responses": {"input": f"{TEXT} It is gone.", "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": f"{TEXT} It was grey."}], "max_tokens": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_salt_parts_the_prefixes_of_one_key_on_every_route(path: str, streamed: bool) -> None:
    server = shared(*FLAGS)
    headers = {"authorization": "Bearer salted"}

    def found(salt: str | None) -> int:
        body = {**ROUTES[path], "cache_salt": None if salt is None else f"{salt} {path} {streamed}"}
        if streamed:
            body |= {"stream": True}
        if streamed and path.endswith("completions"):
            body |= {"stream_options": {"include_usage": True}}
        text = server.post(path, body, headers=headers).text
        pattern = r'"(?:cached_tokens|cache_read_input_tokens)": ?(\d+)'
        return int(re.findall(pattern, text)[-1])

    assert found("mine") == 0
    assert found("mine") > 0
    assert found("yours") == 0
    assert found("yours") > 0


@pytest.mark.slow
def test_a_key_that_holds_every_place_does_not_keep_another_waiting() -> None:
    def body(tokens: int, n: int) -> dict[str, object]:
        return {"text": "Once", "sampling_params": {"max_new_tokens": tokens, "n": n, "ignore_eos": True}}

    with slow_server("--max-running", "4", "--api-key", "one", "--api-key", "two") as server:
        long = {"headers": {"authorization": "Bearer one"}, "timeout": 300}
        holding = threading.Thread(target=lambda: server.post("/generate", body(300, 4), **long))
        holding.start()
        until(lambda: server.metric("tirage_engine_running") == 4, server, "running")
        answer = server.post("/generate", body(5, 1), headers={"authorization": "Bearer two"})
        assert answer.json()["meta_info"]["completion_tokens"] == 5
        # The samples of the other key go on, each in its turn.
        assert holding.is_alive()
        holding.join(300)
        assert server.metric('tirage_samples_total{reason="length"}') == 5
