"""`verify` against plain decoding, one `sample` after the other, on every library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from every_stage import bitmask, hashed_logits
from numpy.typing import NDArray
from schedules import FEATURES, LIBRARIES, V

import tirage
from tirage import ParamsError, SamplingParams, Status, verification

K = 4
Plain = tuple[list[int], list[float], int]


def decoded(
    logits: NDArray[np.float32],
    params: SamplingParams,
    past: tuple[Sequence[int], Sequence[int]],
    *,
    masks: NDArray[np.int32] | None = None,
    index: int = 0,
) -> Plain:
    """The tokens that `sample` draws from logits [k + 1, V], one after the other, their logprobs, the last status."""
    output, logprobs, status = [*past[1]], [], int(Status.ok)
    for at, row in enumerate(logits):
        mask = None if masks is None else masks[at : at + 1]
        drawn = tirage.sample(row, params, history=[(past[0], output)], mask=mask, sample_index=index)
        status = int(drawn.status[0])
        if status != Status.ok:
            break
        output.append(int(drawn.token_ids[0]))
        logprobs.append(float(drawn.sampled_logprobs[0]))
    return output[len(past[1]) :], logprobs, status


def drafted(plain: list[int], right: int, rng: np.random.Generator) -> list[int]:
    """A draft of K tokens whose first `right` tokens are those of plain decoding, and no more."""
    draft = [*plain[:right]]
    if right < K:
        wrong = int(rng.integers(V))
        draft.append((wrong + 1) % V if right < len(plain) and wrong == plain[right] else wrong)
    return [*draft, *rng.integers(0, V, K).tolist()][:K]


def case(seed: int, count: int) -> dict[str, Any]:
    """Rows with features, pasts, masks and drafts by chance, and what plain decoding draws."""
    rng = np.random.default_rng(seed)
    params = [FEATURES[int(rng.integers(len(FEATURES)))].replace(seed=int(rng.integers(1 << 40))) for _ in range(count)]
    pasts = [
        (rng.integers(0, V, rng.integers(4)).tolist(), rng.integers(0, V, rng.integers(3)).tolist()) for _ in params
    ]
    logits = np.stack([[hashed_logits(seed, r, at, size=V) for at in range(K + 1)] for r in range(count)])
    if seed % 5 == 4:
        logits[0, 2, 3] = np.nan
    allowed = [[[t for t in range(V) if (t + r + at) % 4] for at in range(K + 1)] for r in range(count)]
    masks = np.stack([bitmask(*rows, size=V) for rows in allowed]) if seed % 2 else None
    index = int(rng.integers(3))
    plain = [
        decoded(logits[r], params[r], pasts[r], masks=None if masks is None else masks[r], index=index)
        for r in range(count)
    ]
    drafts = np.array([drafted(tokens, int(rng.integers(K + 1)), rng) for tokens, _, _ in plain])
    given = {"params": params, "history": pasts, "mask": masks, "sample_index": [index] * count}
    return {"logits": logits, "draft_ids": drafts, **given, "plain": plain}


def check_case(library: str, seed: int, count: int = 4) -> None:
    given = case(seed, count)
    plain, like = given.pop("plain"), LIBRARIES[library]
    given["logits"] = like(given["logits"])
    given["mask"] = None if given["mask"] is None else like(given["mask"])
    found = tirage.verify(**given)
    assert type(found.token_ids) is type(like(np.zeros(1)))
    for r, (tokens, logprobs, status) in enumerate(plain):
        draft = given["draft_ids"][r].tolist()
        accepted = next((at for at, token in enumerate(tokens[:K]) if token != draft[at]), min(len(tokens), K))
        wanted = tokens[: accepted + 1]
        assert int(found.accepted[r]) == accepted, (seed, r)
        assert np.asarray(found.token_ids[r]).tolist() == wanted + [-1] * (K + 1 - len(wanted))
        reached = np.asarray(found.sampled_logprobs[r])
        np.testing.assert_array_equal(reached[: len(wanted)], np.float32(logprobs[: accepted + 1]))
        assert np.isnan(reached[len(wanted) :]).all()
        assert int(found.status[r]) == (status if len(tokens) <= accepted else Status.ok)


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_it_draws_what_plain_decoding_draws_for_every_feature(library: str) -> None:
    for seed in range(6):
        check_case(library, seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("library", LIBRARIES)
def test_many_drafts_are_verified_as_plain_decoding_draws(library: str) -> None:
    for seed in range(6, 206):
        check_case(library, seed)


def test_a_history_that_lacks_the_draft_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_drafts(first: Any, drafts: Any, width: int) -> Any:
        return along(first, None if drafts is None else np.full_like(drafts, -1), width)

    along = verification._along
    monkeypatch.setattr(verification, "_along", without_drafts)
    with pytest.raises(AssertionError):
        test_it_draws_what_plain_decoding_draws_for_every_feature("numpy")


def rows(count: int = 2, k: int = 2, size: int = 9) -> NDArray[np.float32]:
    return np.stack([[hashed_logits("v", r, at, size=size) for at in range(k + 1)] for r in range(count)])


def test_a_row_alone_is_the_row_of_a_batch_and_a_longer_draft_changes_nothing_before_it() -> None:
    x, params = rows(k=4), SamplingParams(seed=3, repetition_penalty=1.3)
    past = [((1, 2), (3,)), ((), ())]
    plain = [decoded(x[r], params, past[r])[0] for r in range(2)]
    whole = tirage.verify(x, [each[:4] for each in plain], params, history=past)
    assert whole.accepted.tolist() == [4, 4]
    assert whole.token_ids.tolist() == plain
    alone = tirage.verify(x[1:, :3], [plain[1][:2]], params, history=past[1:])
    assert alone.token_ids.tolist() == [plain[1][:3]]


def test_a_draft_of_no_tokens_draws_one() -> None:
    x, params = rows(k=0), SamplingParams(seed=3)
    found = tirage.verify(x, [[], []], params)
    assert found.accepted.tolist() == [0, 0]
    assert found.token_ids[:, 0].tolist() == tirage.sample(x[:, 0], params).token_ids.tolist()
    assert len(tirage.verify(x[:0], np.zeros((0, 0), int), params)) == 0


def test_minus_one_ends_a_shorter_draft() -> None:
    x, params = rows(), SamplingParams(temperature=0)
    best = x.argmax(-1)
    found = tirage.verify(x, [[best[0, 0], -1], [-1, best[1, 1]]], params, history=[((), ())] * 2)
    assert found.accepted.tolist() == [1, 0]
    assert found.token_ids.tolist() == [[*best[0, :2], -1], [best[1, 0], -1, -1]]


def test_step_is_that_of_the_first_token() -> None:
    x, params = rows(count=1), SamplingParams(seed=8)
    tokens = [int(tirage.sample(x[0, at], params, step=7 + at).token_ids[0]) for at in range(3)]
    assert tirage.verify(x, [tokens[:2]], params, step=7).token_ids.tolist() == [tokens]


def test_one_mask_holds_for_all_steps() -> None:
    x, params = rows(), SamplingParams(temperature=0)
    mask = bitmask([1], [2], size=9)
    assert tirage.verify(x, [[1, 1], [2, 2]], params, mask=mask).token_ids.tolist() == [[1] * 3, [2] * 3]


def test_a_fresh_seed_is_one_for_all_steps_and_reported() -> None:
    x, params = rows(k=6, size=50), SamplingParams(temperature=3.0)
    found = tirage.verify(x, np.zeros((2, 6), int), params)
    again = [params.replace(seed=int(seed)) for seed in found.seeds]
    assert tirage.verify(x, np.zeros((2, 6), int), again).token_ids.tolist() == found.token_ids.tolist()


@pytest.mark.slow
def test_inside_jit_drafts_may_be_traced() -> None:
    x, params = jnp.asarray(rows()), SamplingParams(seed=5)
    drafts = jnp.asarray(np.stack([tirage.sample(x[:, at], params, step=at).token_ids for at in range(2)], 1))
    found = jax.jit(lambda logits, ids: tirage.verify(logits, ids, params))(x, drafts)
    assert found.accepted.tolist() == [2, 2]
    assert found.token_ids.tolist() == tirage.verify(x, drafts, params).token_ids.tolist()
    with pytest.raises(ParamsError, match="repetition_penalty must come with the tokens so far"):
        jax.jit(lambda ids: tirage.verify(x, ids, params.replace(repetition_penalty=1.2)))(drafts)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"logits": rows()[0]}, r"logits must have shape \[B, k \+ 1, V\] to verify .*, got \[3, 9\]"),
        ({"logits": rows()[:, :0]}, r"got \[2, 0, 9\]"),
        ({"logits": rows().tolist()}, "logits must be an array of"),
        ({"draft_ids": [[1, 2, 3]] * 2}, r"draft_ids must have shape \[B, k\] = \[2, 2\] .*, got \[2, 3\]"),
        ({"draft_ids": [[1, 2]] * 3}, r"got \[3, 2\]"),
        ({"draft_ids": [[1], [2, 3]]}, r"draft_ids must be integers \[B, k\]"),
        ({"draft_ids": [[1, 9], [2, 3]]}, r"must lie in \[0, 9\), the vocabulary of the logits, .*, got 9"),
        ({"draft_ids": [[1, -2], [2, 3]]}, "got -2"),
        ({"draft_ids": [[1.0, 2.0]] * 2}, "draft_ids must be integers, got float64"),
        ({"draft_ids": None}, r"draft_ids must have shape \[B, k\]"),
        ({"params": SamplingParams(repetition_penalty=1.2)}, "must come with the tokens so far"),
        ({"params": SamplingParams(n=2)}, "n must be 1"),
        ({"mask": bitmask([1], [2], [3], size=9)[None]}, r"mask must have shape \[B, k \+ 1, words\] = \[2, 3, ...\]"),
        ({"history": [((), [0] * ((1 << 20) - 1))] * 2}, "histories of at most 1048576 tokens, got 1048575"),
    ],
)
def test_what_cannot_be_verified_is_refused_by_name(changes: dict[str, Any], text: str) -> None:
    given = {"logits": rows(), "draft_ids": [[1, 2], [3, 4]], "params": SamplingParams(seed=1), **changes}
    with pytest.raises(ParamsError, match=text):
        tirage.verify(**given)


def test_a_draw_without_a_token_accepts_no_end_of_a_draft() -> None:
    """Both are -1."""
    x = np.zeros((2, 3, 5), np.float32)
    x[0, 0] = np.nan
    found = tirage.verify(x, [[-1, -1], [-1, -1]], SamplingParams(temperature=0))
    assert found.accepted.tolist() == [0, 0]
    assert found.token_ids.tolist() == [[-1, -1, -1], [0, -1, -1]]
    assert found.status.tolist() == [int(Status.non_finite_logits), 0]
