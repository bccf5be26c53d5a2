"""The registry behind `logits_processors`."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tirage.dialects import from_sglang
from tirage.errors import ParamsError
from tirage.params import SamplingParams
from tirage.processors import find_processor, processor_names, register_processor, unregister_processor


def double(logits: np.ndarray, args: list[dict[str, Any]]) -> np.ndarray:
    return logits * 2


@pytest.fixture
def registered() -> Any:
    register_processor("double", double, arg_names=["factor"])
    yield
    unregister_processor("double")


@pytest.mark.usefixtures("registered")
def test_a_registered_function_is_found_by_its_name() -> None:
    assert find_processor("double").fn is double
    assert "double" in processor_names()


@pytest.mark.usefixtures("registered")
def test_a_taken_name_is_refused_unless_replacing() -> None:
    with pytest.raises(ParamsError, match="processor name must be free, got 'double'; use replace=True"):
        register_processor("double", double)
    register_processor("double", double, replace=True)
    assert find_processor("double").arg_names is None


@pytest.mark.usefixtures("registered")
def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ParamsError, match="got 'duoble'; did you mean 'double'"):
        find_processor("duoble")


class Doubling:
    def __call__(self, logits: np.ndarray, args: list[dict[str, Any]]) -> np.ndarray:
        return logits * 2


@pytest.mark.parametrize(
    ("fn", "got"),
    [
        (Doubling, r"got the class Doubling; register an instance, Doubling\(\)$"),
        (dict, r"got the class dict; register an instance, dict\(\)$"),
        (3, "got int$"),
        (lambda logits: logits, r"got one of \(logits\) \(too many positional arguments\); take both by position$"),
        (
            lambda logits, args, extra: logits,
            r"got one of \(logits, args, extra\) \(missing a required argument: 'extra'\)",
        ),
        (lambda logits, *, args: logits, r".*; take both by position$"),
    ],
)
def test_what_cannot_be_called_with_logits_and_args_is_refused_at_once(fn: Any, got: str) -> None:
    with pytest.raises(ParamsError, match=rf"^processor 'unfit' must be a function of \(logits, args\), {got}"):
        register_processor("unfit", fn)
    assert "unfit" not in processor_names()


@pytest.mark.parametrize("fn", [Doubling(), Doubling().__call__, lambda *both: both[0], np.multiply])
def test_whatever_takes_logits_and_args_can_be_registered(fn: Any) -> None:
    register_processor("fit", fn)
    unregister_processor("fit")


def test_in_a_program_an_unknown_name_is_answered_with_what_registers_it() -> None:
    for refused in (
        lambda: SamplingParams(logits_processors=(("nobody", {}),)),
        lambda: from_sglang({}, custom_logit_processor="nobody"),
        lambda: from_sglang({}, custom_logit_processor='{"processor": "nobody"}'),
    ):
        with pytest.raises(ParamsError, match=r"'nobody'; register it with tirage\.register_processor$"):
            refused()


def test_an_unregistered_name_is_gone() -> None:
    register_processor("short_lived", double)
    unregister_processor("short_lived")
    with pytest.raises(ParamsError, match="short_lived"):
        find_processor("short_lived")
    with pytest.raises(ParamsError, match="short_lived"):
        unregister_processor("short_lived")


@pytest.mark.usefixtures("registered")
def test_a_row_gets_its_own_arguments_and_the_declared_extra_ones() -> None:
    declared = find_processor("double")
    assert declared.merge({}, {"factor": 3, "other": 4}) == {"factor": 3}
    assert declared.merge({"factor": 1}, None) == {"factor": 1}
    register_processor("double", double, replace=True)
    assert find_processor("double").merge({"a": 1}, {"b": 2}) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("name", "fn", "arg_names", "message"),
    [
        ("", double, None, "processor name must be a non-empty string"),
        (5, double, None, "processor name must be a non-empty string"),
        ("x", "double", None, r"processor 'x' must be a function of \(logits, args\), got str"),
        ("x", double, "factor", "arg_names of processor 'x' must be a list of names"),
        ("x", double, [1], "arg_names of processor 'x' must be a list of names"),
    ],
)
def test_a_registration_that_makes_no_sense_is_refused(name: Any, fn: Any, arg_names: Any, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        register_processor(name, fn, arg_names=arg_names)
    assert name not in processor_names()


def test_of_many_threads_one_gets_the_name() -> None:
    wins: list[int] = []
    ready = threading.Barrier(8)

    def register(number: int) -> None:
        ready.wait()
        try:
            register_processor("contended", double)
            wins.append(number)
        except ParamsError:
            pass

    threads = [threading.Thread(target=register, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    unregister_processor("contended")
    assert len(wins) == 1
