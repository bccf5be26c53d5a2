"""Every field that a route takes changes its answer, whole and streamed, and both are the same answer."""

from __future__ import annotations

import pytest
from field_answers import ask, body_of, drawn, route_of, together
from field_effects import CHAT, COMPLETIONS, EFFECTS, Effect
from servers import shared

CASES = [
    (place, name)
    for place, effects in EFFECTS.items()
    for name, effect in effects.items()
    if isinstance(effect, Effect)
]


@pytest.mark.parametrize(("place", "name"), CASES)
def test_a_field_changes_the_answer_whole_and_streamed(place: str, name: str) -> None:
    effect = EFFECTS[place][name]
    assert isinstance(effect, Effect)
    value = effect.value(drawn(place)) if callable(effect.value) else effect.value
    without, beside = dict(effect.beside), {**effect.beside, name: value}
    if effect.whole:
        assert ask(place, beside, stream=False) != ask(place, without, stream=False)
    if not effect.streamed:
        reply = shared().post(route_of(place), body_of(place, beside, stream=True))
        error = reply.json()["error"]
        field = error.get("param", error["message"].split()[0]).rpartition(".")[2]
        assert (reply.status_code, field) == (400, name)
        return
    events = ask(place, beside, stream=True)
    assert events != ask(place, without, stream=True)
    if effect.whole:
        assert together(place, events) == ask(place, beside, stream=False)


@pytest.mark.parametrize("place", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
def test_the_tokens_asked_for_stand_with_the_drawn_one(place: str, stream: bool) -> None:
    wanted = [300, 5, drawn(place)[0]]
    logprobs = True if place == CHAT else 1
    fields = {"logprobs": logprobs, "logprob_token_ids": wanted, "return_tokens_as_token_ids": True, "top_logprobs": 4}
    if place == COMPLETIONS:
        del fields["top_logprobs"]
    found = ask(place, fields, stream=stream)
    [choice] = (together(place, found) if stream else found)["choices"]
    if place == CHAT:
        steps = [
            (one["token"], {each["token"]: each["logprob"] for each in one["top_logprobs"]}, one["logprob"])
            for one in choice["logprobs"]["content"]
        ]
    else:
        parts = choice["logprobs"]
        steps = list(zip(parts["tokens"], parts["top_logprobs"], parts["token_logprobs"], strict=True))
    assert [token for token, _, _ in steps] == [f"token_id:{token}" for token in drawn(place)]
    for token, top, logprob in steps:
        assert set(top) == {token, *(f"token_id:{each}" for each in wanted)}
        assert top[token] == logprob


@pytest.mark.parametrize("place", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
def test_tokens_are_not_asked_for_without_logprobs(place: str, stream: bool) -> None:
    reply = shared().post(place, body_of(place, {"logprob_token_ids": [5]}, stream=stream))
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "logprob_token_ids"
    assert "logprob_token_ids must go with logprobs, got [5] without" in reply.json()["error"]["message"]
