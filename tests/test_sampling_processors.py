"""Custom logits processors inside `sample` and `law`: what they see, what they may do, what they cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from every_stage import bitmask, hashed_logits

import tirage
from tirage import ParamsError, RowError, SamplingParams, Status
from tirage.processors import register_processor, unregister_processor

Register = Callable[..., SamplingParams]


@pytest.fixture
def using() -> Iterator[Register]:
    """Registers a function under a name for one test; gives params that use it."""
    names: list[str] = []

    def register(
        fn: Any, args: dict[str, Any] | None = None, arg_names: Any = None, name: str = "mine", **options: Any
    ) -> SamplingParams:
        register_processor(name, fn, arg_names=arg_names)
        names.append(name)
        return SamplingParams(logits_processors=[(name, args or {})], **{"seed": 1, **options})

    yield register
    for name in names:
        unregister_processor(name)


def greedy_token(x: Any, params: SamplingParams, **options: Any) -> list[int]:
    return tirage.sample(np.asarray(x, np.float64), params, **options).token_ids.tolist()


def test_what_a_processor_returns_is_what_is_drawn_from(using: Register) -> None:
    params = using(lambda logits, args: -logits, temperature=0)
    assert greedy_token([3.0, 1.0, 2.0], params) == [1]


def test_a_processor_gets_a_row_of_float32_and_its_arguments(using: Register) -> None:
    seen: list[Any] = []

    def look(logits: Any, args: Any) -> Any:
        seen.append((logits.dtype.name, logits.tolist(), args))
        return logits

    params = using(look, {"a": 1}, extra_args={"b": [2]}, temperature=0)
    tirage.sample(np.array([0.5, -1.0]), params)
    assert seen == [("float32", [[0.5, -1.0]], [{"a": 1, "b": [2]}])]


def test_extra_args_reach_only_the_processors_that_declare_them(using: Register) -> None:
    seen: dict[str, Any] = {}

    def noting(name: str) -> Any:
        return lambda logits, args: (seen.__setitem__(name, args[0]), logits)[1]

    using(noting("first"), arg_names=["a", "c"], name="first")
    using(noting("second"), arg_names=["b"], name="second")
    both = SamplingParams(
        logits_processors=[("first", {"c": 3}), ("second", {})], extra_args={"a": 1, "b": 2}, seed=1, temperature=0
    )
    tirage.sample(np.zeros(2), both)
    assert seen == {"first": {"a": 1, "c": 3}, "second": {"b": 2}}


def test_processors_run_in_the_order_given_each_on_the_last_ones_result(using: Register) -> None:
    using(lambda logits, args: logits + 1, name="add")
    using(lambda logits, args: logits * 3, name="triple")
    twice: dict[str, Any] = {"seed": 1, "logprob_token_ids": [0], "logprobs_mode": "processed"}
    for names, expected in ((["add", "triple"], 6.0), (["triple", "add"], 4.0)):
        params = SamplingParams(logits_processors=[(name, {}) for name in names], **twice)
        x = np.array([1.0, -np.inf, 0.0])
        drawn = tirage.sample(x, params)
        other = 3.0 if names[0] == "add" else 1.0
        assert drawn.given_logprobs is not None
        expected_logprob = expected - np.logaddexp(expected, other)
        assert drawn.given_logprobs[0][0] == pytest.approx(expected_logprob, abs=3e-6)


def test_the_semantics_says_whether_penalties_come_before_processors(using: Register) -> None:
    seen: list[float] = []
    params = using(lambda logits, args: (seen.append(float(logits[0, 0])), logits)[1], presence_penalty=1.0)
    for preset in ("vllm", "vllm-v1"):
        tirage.sample(np.array([5.0, 0.0]), params.replace(semantics=preset), history=[([], [0])])
    assert seen == [4.0, 5.0]


def test_a_processor_sees_masked_tokens_as_impossible_and_cannot_revive_them(using: Register) -> None:
    seen: list[Any] = []

    def revive(logits: Any, args: Any) -> Any:
        seen.append(logits.tolist())
        return np.full_like(logits, 7.0)

    params = using(revive, logit_bias={1: -np.inf}, bad_words_token_ids=[2], allowed_token_ids=[0, 1, 2, 4])
    kept = np.flatnonzero(tirage.law(np.zeros(6), params, mask=bitmask([0, 1, 2, 3, 4], size=6))[0])
    assert kept.tolist() == [0, 4]
    assert seen[0] == [[0.0, -np.inf, -np.inf, -np.inf, 0.0, -np.inf]]


def test_a_processor_may_forbid_every_token(using: Register) -> None:
    params = using(lambda logits, args: np.full_like(logits, -np.inf))
    assert tirage.sample(np.zeros(3), params).status.tolist() == [Status.no_allowed_token]


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, 1e300], ids=["nan", "-nan", "+inf", "beyond float32"])
def test_a_non_finite_result_is_the_processors_failure_and_not_the_models(using: Register, value: float) -> None:
    params = using(lambda logits, args: logits.astype(np.float64) + np.array([value, 0.0]))
    plain = SamplingParams(seed=1)
    drawn = tirage.sample(np.zeros((2, 2)), [plain, params])
    assert drawn.status.tolist() == [Status.ok, Status.processor_failed]
    assert drawn.token_ids.tolist() == [int(tirage.sample(np.zeros(2), plain).token_ids[0]), -1]


def test_a_non_finite_result_at_a_masked_token_is_harmless(using: Register) -> None:
    params = using(lambda logits, args: logits + np.array([np.nan, 0.0]), allowed_token_ids=[1])
    assert greedy_token([0.0, 0.0], params) == [1]


def test_rows_with_different_processors_do_not_touch_each_other(using: Register) -> None:
    flip = using(lambda logits, args: -logits, name="flip")
    scale = using(lambda logits, args: logits * args[0]["by"], {"by": 3}, name="scale")
    x = np.stack([hashed_logits("processors", i, size=20) for i in range(6)])
    params = [flip, SamplingParams(seed=1), scale] * 2
    law = tirage.law(x, params)
    for row in range(6):
        np.testing.assert_array_equal(law[row], tirage.law(x[row], params[row])[0])
    np.testing.assert_array_equal(law[0], tirage.law(-x[0], SamplingParams())[0])


def test_a_processor_that_changes_its_input_changes_nothing_else(using: Register) -> None:
    def spoil(logits: Any, args: Any) -> Any:
        result = logits.copy()
        logits[:] = np.nan
        args[0]["new"] = 1
        return result

    params = using(spoil, {"old": 0})
    x = np.zeros((3, 4), np.float32)
    drawn = tirage.sample(x, params)
    assert x.tolist() == np.zeros((3, 4)).tolist()
    assert drawn.token_ids.tolist() == tirage.sample(x, SamplingParams(seed=1)).token_ids.tolist()
    assert params.logits_processors[0][1] == {"old": 0}


def test_a_processor_that_fails_is_named(using: Register, caplog: pytest.LogCaptureFixture) -> None:
    def fail(logits: Any, args: Any) -> Any:
        raise KeyError("threshold")

    params = using(fail, name="sharpen")
    with pytest.raises(RowError) as error:
        tirage.law(np.zeros(2), params)
    assert str(error.value) == "logits processor 'sharpen' failed: KeyError: 'threshold'"
    assert isinstance(error.value.__cause__, KeyError)
    tirage.sample(np.zeros(2), params)
    assert "logits processor 'sharpen' failed: KeyError: 'threshold'" in caplog.text


def test_a_processor_that_fails_ends_its_row_and_no_other(using: Register) -> None:
    def fail(logits: Any, args: Any) -> Any:
        raise KeyError("threshold")

    other = SamplingParams(seed=4)
    drawn = tirage.sample(np.zeros((3, 8)), [other, using(fail), other])
    assert drawn.status.tolist() == [Status.ok, Status.processor_failed, Status.ok]
    alone = tirage.sample(np.zeros(8), other).token_ids[0]
    assert drawn.token_ids.tolist() == [alone, -1, alone]
    assert np.isnan(drawn.sampled_logprobs[1])


@pytest.mark.parametrize(
    ("result", "got"),
    [
        (np.zeros(4, np.float32), "float32 of shape [4]"),
        (np.zeros((1, 3), np.float32), "float32 of shape [1, 3]"),
        (np.zeros((2, 4), np.float32), "float32 of shape [2, 4]"),
        (np.zeros((1, 4), complex), "complex128 of shape [1, 4]"),
        (np.zeros((1, 4), bool), "bool of shape [1, 4]"),
        (None, "object of shape []"),
    ],
)
def test_a_result_of_the_wrong_kind_is_refused_by_name(using: Register, result: Any, got: str) -> None:
    params = using(lambda logits, args: result)
    with pytest.raises(RowError) as error:
        tirage.law(np.zeros(4), params)
    assert str(error.value) == (f"logits processor 'mine' must return floats of shape [rows, V] = [1, 4], got {got}")


def test_a_processor_forgotten_after_the_params_were_made_is_refused() -> None:
    register_processor("gone", lambda logits, args: logits)
    params = SamplingParams(logits_processors=[("gone", {})])
    unregister_processor("gone")
    with pytest.raises(ParamsError, match=r"^processor must be a registered name, got 'gone'"):
        tirage.sample(np.zeros(2), params)


def test_a_token_revived_from_nothing_has_no_raw_logprob(using: Register) -> None:
    params = using(lambda logits, args: np.where(np.arange(3) == 1, np.float32(2), logits)).replace(logprobs=2)
    drawn = tirage.sample(np.full(3, -np.inf, np.float32), params)
    assert drawn.token_ids.tolist() == [1]
    assert drawn.logprobs.tolist() == [-np.inf]
    assert drawn.ranks.tolist() == [1]
    assert drawn.top_token_ids.tolist() == [[-1, -1]]
