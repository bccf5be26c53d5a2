"""Several keys on one server: nobody learns from the cache what others have asked."""

from __future__ import annotations

import pytest
from servers import shared

FLAGS = ("tiny", "--backend", "torch", "--api-key", "one", "--api-key", "two")
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
    headers = {"authorization": "Bearer one"}

    def total() -> float:
        lines = server.get("/metrics", headers=headers).text.splitlines()
        return next(float(line.split(" ")[1]) for line in lines if line.startswith("tirage_engine_cached_tokens_total"))

    cached("one", TEXT)
    before = total()
    found = cached("one", TEXT)
    assert found > 0
    assert total() - before == found
