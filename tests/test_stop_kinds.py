"""Every way in which a text can end, each under its own name."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray
from small_models import Script
from small_tokenizers import Letters, byte_level_tokenizer

from tirage import LLM, Completion, GuidedDecodingParams, ParamsError, SamplingParams, register_processor
from tirage.engine.constraint_budget import limited
from tirage.engine.sample import finish_reason_of
from tirage.text import Stop
from tirage.text.stops import StopKind

LONG = SamplingParams(temperature=0, max_tokens=40)


class Silent(Letters):
    """Cannot decode a d."""

    def decode(self, ids: Any) -> str:
        if ord("d") in ids:
            raise UnicodeError("no d")
        return super().decode(ids)


def say(text: str, *, tokenizer: Any = None, prompt: str = "p", max_length: int = 50, **options: Any) -> Completion:
    llm_options = {"cache_length": options.pop("cache_length")} if "cache_length" in options else {}
    config = {"eos_token_id": ord("e")}
    model = Script(text, max_length=max_length)
    with LLM(model, tokenizer=tokenizer or Letters(), generation_config=config, **llm_options) as llm:
        return llm.generate(prompt, LONG.replace(**options))[0]


def aborted() -> Completion:
    asked = threading.Event()

    class Waits(Script):
        def decode(self, *given: Any) -> Any:
            asked.wait(60)
            return super().decode(*given)

    with LLM(Waits("abcd"), tokenizer=Letters()) as llm:
        stream = llm.engine.submit(llm.request("p", LONG))
        stream.abort()
        asked.set()
        return stream.wait(60)


def failed_processor() -> Completion:
    def breaks(logits: NDArray[np.float32], args: list[dict[str, Any]]) -> NDArray[np.float32]:
        raise ValueError("no")

    register_processor("breaks_a_text", breaks, replace=True)
    return say("abc", logits_processors=(("breaks_a_text", {}),))


def failed_model() -> Completion:
    class Broken(Script):
        def decode(self, *_: Any) -> Any:
            raise RuntimeError("broken")

    with LLM(Broken("abc"), tokenizer=Letters()) as llm:
        return llm.generate("p", LONG)[0]


def constrained(regex: str, **options: Any) -> Completion:
    guided = GuidedDecodingParams(regex=regex)
    with LLM(Script("abc"), tokenizer=byte_level_tokenizer()) as llm:
        return llm.generate("p", LONG.replace(guided_decoding=guided, **options))[0]


def failed_grammar() -> Completion:
    """A constraint so deep that its matcher gives up."""
    return constrained("((a{1,1000}){1,1000}){1,1000}b", max_tokens=60, logit_bias={ord("a"): 90.0})


def exhausted_budget() -> Completion:
    guided = GuidedDecodingParams(regex="abc")
    with LLM(Script("abc"), tokenizer=byte_level_tokenizer()) as llm:
        with limited(total_s=60.0, mask_s=0.0):
            request = llm.request("p", LONG.replace(guided_decoding=guided))
        return llm.engine.submit(request).wait(60)


CASES: dict[str, tuple[str, Callable[[], Completion], str, Any]] = {
    "eos": ("stop", lambda: say("abcde"), "abcd", ord("e")),
    "token": ("stop", lambda: say("abcd", stop_token_ids=[ord("c")]), "ab", ord("c")),
    "string": ("stop", lambda: say("abcd", stop=["bc"]), "a", "bc"),
    "regex": ("stop", lambda: say("abcd", stop_pattern="[b-d]{2}"), "a", "[b-d]{2}"),
    "grammar": ("stop", lambda: constrained("abc"), "abc", None),
    "max_tokens": ("length", lambda: say("abcd", max_tokens=3), "abc", None),
    "context": ("length", lambda: say("abcd" * 9, max_length=7, prompt="pppp"), "abc", None),
    "cache": ("length", lambda: say("abcd" * 9, cache_length=6, prompt="pppp"), "ab", None),
    "non_finite_logits": ("error", lambda: say("ab{"), "ab", None),
    "no_allowed_token": ("error", lambda: say("ab}"), "ab", None),
    "kept_too_wide": ("error", lambda: say("abcd", temperature=2, return_kept=True, max_kept_ids=299), "", None),
    "processor_failed": ("error", failed_processor, "", None),
    "model_failed": ("error", failed_model, "a", None),
    "text_failed": ("error", lambda: say("abcd", tokenizer=Silent()), "abc", None),
    "grammar_failed": ("error", failed_grammar, None, None),
    "constraint_budget": ("error", exhausted_budget, "", None),
    "abort": ("abort", aborted, None, None),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("kind", get_args(StopKind))
def test_a_text_ends_with_the_kind_and_the_reason_of_its_end(kind: str) -> None:
    reason, run, text, matched = CASES[kind]
    done = run()
    assert done.stop is not None
    assert (done.stop.kind, done.finish_reason, done.stop.matched) == (kind, reason, matched)
    assert finish_reason_of(Stop(kind=kind)) == reason  # type: ignore[arg-type]
    assert text is None or done.text == text


def test_the_smaller_of_context_and_cache_names_the_end() -> None:
    assert say("abcd" * 9, cache_length=50, max_length=7, prompt="pppp").stop == Stop(kind="context")
    assert say("abcd" * 9, cache_length=9, prompt="pppp", max_tokens=5).stop == Stop(kind="max_tokens")


def test_a_prompt_longer_than_the_cache_is_refused_with_both_numbers() -> None:
    with pytest.raises(ParamsError, match="prompt must hold at most 3 tokens, the cache_length, got 4; shorten it"):
        say("a", cache_length=3, prompt="pppp")


@pytest.mark.parametrize("value", [0, True, 2.5])
def test_a_cache_length_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ParamsError, match="cache_length must be a positive integer or None"):
        say("a", cache_length=value)
