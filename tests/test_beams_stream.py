"""Beam searches with fewer texts than beams, and as streams: what is certain comes early, the rest at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from small_models import Script
from small_tokenizers import Letters

from tirage import LLM, BeamSearchParams, Delta, ParamsError, RequestOutputKind, SamplingParams


class Letter(Script):
    """Any letter of a to e may follow, as likely as the place and the letter before say; e ends a text."""

    def _logits(self, place: int) -> NDArray[np.float32]:
        row = np.full(self.vocab_size, -np.inf, np.float32)
        row[ord("a") : ord("f")] = np.random.default_rng(place).normal(scale=2.0, size=5)
        row[ord("e")] -= 2.0
        return row


@pytest.fixture(scope="module")
def letters() -> Any:
    with LLM(Letter(""), tokenizer=Letters()) as llm:
        yield llm


def beams(width: int = 4, tokens: int = 12, **options: Any) -> BeamSearchParams:
    return BeamSearchParams(beam_width=width, max_tokens=tokens, **options)


def joined(deltas: Sequence[Delta]) -> dict[int, tuple[str, tuple[int, ...], Any]]:
    """The text, token ids and finish reason that the deltas of each hypothesis add up to."""
    found: dict[int, tuple[str, tuple[int, ...], Any]] = {}
    for delta in deltas:
        text, ids, reason = found.get(delta.index, ("", (), None))
        assert reason is None
        found[delta.index] = (text + delta.text, ids + delta.token_ids, delta.finish_reason)
    return found


CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"width": 1}, {}),
    ({"num_return_sequences": 2}, {}),
    ({"early_stopping": True, "length_penalty": 2.0}, {}),
    ({"tokens": 40}, {"stop": ["bb", "cad"], "logprobs": 1}),
    ({"tokens": 20, "include_stop_str_in_output": True}, {"stop": ["b"], "min_tokens": 3}),
    ({"tokens": 6}, {"detokenize": False}),
    ({"tokens": 0}, {}),
]


@pytest.mark.parametrize(("options", "sampling"), CASES)
def test_the_deltas_add_up_to_the_hypotheses_of_the_search(
    letters: LLM, options: dict[str, Any], sampling: dict[str, Any]
) -> None:
    params, given = beams(**options), SamplingParams(stop_token_ids=[ord("e")], **sampling)
    [expected] = letters.beam_search("a", params, sampling=given)
    deltas = list(letters.beam_search_stream("a", params, sampling=given))
    samples = [(each.text, each.token_ids, each.finish_reason) for each in expected.samples]
    assert [joined(deltas)[index] for index in range(len(samples))] == samples
    assert [delta.completion is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    assert deltas[-1].completion is not None
    assert deltas[-1].completion.samples == expected.samples
    if "logprobs" in sampling:
        entries = [entry for delta in deltas if delta.index == 0 for entry in delta.logprobs or ()]
        assert tuple(entries) == expected.logprobs


def test_what_all_hypotheses_begin_with_comes_before_the_search_is_over(letters: LLM) -> None:
    deltas = list(letters.beam_search_stream("a", beams(width=3, tokens=60, num_return_sequences=1)))
    early = [delta for delta in deltas if delta.finish_reason is None]
    assert {delta.index for delta in early} == {0}
    assert len("".join(delta.text for delta in early)) > 5


def test_an_output_kind_of_the_end_gives_one_delta(letters: LLM) -> None:
    final = SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY)
    [delta] = letters.beam_search_stream("a", beams(), sampling=final)
    assert delta.completion is not None
    assert delta.completion.samples == letters.beam_search("a", beams())[0].samples


def test_a_stream_that_is_given_up_ends_its_search(letters: LLM) -> None:
    stream = letters.beam_search_stream("a", beams(width=3, tokens=4000))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert letters.beam_search("a", beams(tokens=3))[0].finish_reason == "length"


def test_a_wrong_stream_is_refused_at_the_call(letters: LLM) -> None:
    with pytest.raises(ParamsError, match="use beam_search"):
        letters.beam_search_stream(["a", "b"], beams())  # pyright: ignore[reportArgumentType]
    with pytest.raises(ParamsError, match="top_p must keep its default"):
        letters.beam_search_stream("a", beams(), sampling=SamplingParams(top_p=0.5))


@pytest.mark.parametrize("returned", [1, 2, 4])
def test_fewer_texts_than_beams_are_the_best_of_the_same_search(letters: LLM, returned: int) -> None:
    [every] = letters.beam_search("a", beams())
    [some] = letters.beam_search("a", beams(num_return_sequences=returned))
    assert some.samples == every.samples[:returned]
    assert some.usage.completion_tokens == sum(len(each.token_ids) for each in some.samples)
    assert len(every.samples) == 4


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "num_return_sequences must be at most beam_width, which is 4, got 5; widen the search"),
        (0, "num_return_sequences must be an integer >= 1 or None, got 0"),
        (True, "num_return_sequences must be an integer >= 1 or None, got True"),
    ],
)
def test_more_texts_than_beams_are_refused(value: Any, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        beams(num_return_sequences=value)


def test_easydels_parameters_search_the_same(letters: LLM) -> None:
    easydel = pytest.importorskip("tirage.compat.easydel", reason="needs JAX; pip install 'tirage[jax]' runs it")
    theirs = letters.beam_search("a", easydel.BeamSearchParams(4, 12, num_return_sequences=3))[0]
    assert theirs.samples == letters.beam_search("a", beams(num_return_sequences=3))[0].samples
    own = easydel.SamplingParams(stop=["b"], bad_words=None)
    assert [s.text for s in letters.beam_search("a", beams(), sampling=own)[0].samples] == [
        s.text for s in letters.beam_search("a", beams(), sampling=SamplingParams(stop=["b"]))[0].samples
    ]
