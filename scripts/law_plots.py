"""Plots of laws: what a parameter does, at three values, to the token after "The little girl went to the"."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tirage
from scripts.svg_figures import Panel, law_figure
from tirage import LLM, SamplingParams

PROMPT = "The little girl went to the"
_SHOWN = 8
_MINUS_INF = float("-inf")


@dataclass(frozen=True, kw_only=True)
class LawPlot:
    """Three settings of a parameter, by the titles of their panels.

    `off` are the parameters of the pale bars. `seen` are the words of the tokens so far; `note` says what else holds.
    """

    settings: Mapping[str, Mapping[str, Any]]
    off: Mapping[str, Any] = field(default_factory=dict)
    seen: Sequence[str] = ()
    note: str = ""


@cache
def llm() -> LLM:
    """The bundled model, opened once."""
    return LLM("tiny")


@cache
def logits() -> NDArray[np.float32]:
    """float32 [V]: the logits after the prompt, to two decimals, so that a plot is the same on every machine."""
    return np.round(llm().engine.next_logits(llm().tokenizer.encode(PROMPT)), 2).astype(np.float32)


@cache
def shown() -> tuple[int, ...]:
    """The likeliest tokens, which have a row each; all others share the last row."""
    return tuple(int(token) for token in np.lexsort((np.arange(logits().size), -logits()))[:_SHOWN])


@cache
def words() -> dict[str, int]:
    """The ids of the tokens that have a row, by their texts."""
    return {llm().tokenizer.decode([token]): token for token in shown()}


def ids(*names: str) -> list[int]:
    """The ids of words that have a row."""
    return [words()[name] for name in names]


def at(name: str, *values: Any, note: str = "", seen: Sequence[str] = (), **company: Any) -> LawPlot:
    """A plot of a parameter at some values, in company of other parameters that do not change."""
    settings = {f"{value!r}": {name: value, **company} for value in values}
    return LawPlot(settings=settings, off=company, seen=seen, note=note)


def drawn(name: str, plot: LawPlot) -> str:
    """The plot as SVG."""
    before = _bars(law_of(plot.off, plot.seen))
    panels = [
        Panel(title=title, before=before, after=_bars(law_of(options, plot.seen)))
        for title, options in plot.settings.items()
    ]
    return law_figure(name, labels=[*words(), "others"], panels=panels, note=plot.note)


def law_of(options: Mapping[str, Any], seen: Sequence[str]) -> NDArray[np.float64]:
    """float64 [V]: the law under some parameters after some words."""
    params = SamplingParams(**options).update_with_tokenizer(llm().tokenizer)
    return np.asarray(tirage.law(logits(), params, history=[((), ids(*seen))])[0])


def _bars(law: NDArray[np.float64]) -> list[float]:
    rows = [float(law[token]) for token in shown()]
    return [*rows, max(float(law.sum()) - sum(rows), 0.0) if (np.delete(law, shown()) > 0).any() else 0.0]


def _more_likely(rows: NDArray[np.float32], arguments: list[dict[str, Any]]) -> NDArray[np.float32]:
    """A custom processor: it adds `by` to the logit of `token`."""
    for row, given in zip(rows, arguments, strict=True):
        row[given["token"]] += given["by"]
    return rows


def laws() -> dict[str, Callable[[], LawPlot]]:
    """The plots by the names of their files; each is made when it is drawn, as some need the model."""
    return laws_of_filters() | laws_of_edits()


def laws_of_filters() -> dict[str, Callable[[], LawPlot]]:
    """The plots of what a draw keeps of the law: temperatures and filters."""
    return {
        "temperature": lambda: at("temperature", 0, 0.5, 2.0),
        "dynatemp_range": lambda: at("dynatemp_range", 0.0, 0.4, 0.8),
        "dynatemp_exponent": lambda: at(
            "dynatemp_exponent", 0.5, 1.0, 3.0, note="with dynatemp_range=0.8", dynatemp_range=0.8
        ),
        "semantics": lambda: LawPlot(
            settings={
                repr(name): {"semantics": name, "top_k": 6, "top_p": 0.75, "temperature": 1.5}
                for name in ("vllm", "sglang", "llamacpp")
            },
            note="each with top_k=6, top_p=0.75, temperature=1.5",
        ),
        "smoothing_factor": lambda: at("smoothing_factor", 0.0, 0.2, 0.8),
        "smoothing_curve": lambda: at(
            "smoothing_curve", 1.0, 3.0, 9.0, note="with smoothing_factor=0.3", smoothing_factor=0.3
        ),
        "top_k": lambda: at("top_k", 0, 5, 2),
        "top_p": lambda: at("top_p", 1.0, 0.7, 0.4),
        "min_p": lambda: at("min_p", 0.0, 0.2, 0.28),
        "min_keep": lambda: at("min_keep", 0, 3, 6, note="with top_p=0.2", top_p=0.2),
        "top_a": lambda: at("top_a", 0.0, 0.5, 0.85),
        "p_less": lambda: at("p_less", None, "norm", "plain"),
        "tfs": lambda: at("tfs", 1.0, 0.9, 0.5),
        "typical_p": lambda: at("typical_p", 1.0, 0.7, 0.3),
        "epsilon_cutoff": lambda: at("epsilon_cutoff", 0.0, 0.05, 0.085),
        "eta_cutoff": lambda: at("eta_cutoff", 0.0, 0.05, 0.3),
        "top_n_sigma": lambda: at("top_n_sigma", 0.0, 0.8, 0.4),
        "top_h": lambda: at("top_h", 0.0, 0.6, 0.3),
        "xtc_probability": lambda: at(
            "xtc_probability", 0.0, 0.5, 1.0, note="with xtc_threshold=0.08", xtc_threshold=0.08
        ),
        "xtc_threshold": lambda: at(
            "xtc_threshold", 0.1, 0.085, 0.05, note="with xtc_probability=1", xtc_probability=1
        ),
        "xtc_protected_ids": lambda: LawPlot(
            settings={
                _listed(kept): {"xtc_protected_ids": ids(*kept), "xtc_probability": 1, "xtc_threshold": 0.08}
                for kept in ((), ("river",), ("river", "pond"))
            },
            note="with xtc_probability=1, xtc_threshold=0.08",
        ),
        "adaptive_target": lambda: at("adaptive_target", -1.0, 0.3, 0.1),
        "mirostat": lambda: at("mirostat", 0, 1, 2, note="with mirostat_tau=1.5", mirostat_tau=1.5),
        "mirostat_tau": lambda: at("mirostat_tau", 5.0, 1.6, 1.2, note="with mirostat=2", mirostat=2),
    }


def laws_of_edits() -> dict[str, Callable[[], LawPlot]]:
    """The plots of what changes logits before: penalties, biases and bans."""
    twice, once = ("river", "pond", "river"), ("meadow", "pond", "river", "meadow", "pond")
    loop = ("hill", "old", "pond", "river", "hill", "old", "pond", "meadow", "hill", "old", "pond")
    seen = "seen so far: river, pond, river"
    repeated = "so far: hill old pond river, hill old pond meadow, hill old pond"
    return {
        "repetition_penalty": lambda: at("repetition_penalty", 1.0, 1.1, 1.3, seen=twice, note=seen),
        "frequency_penalty": lambda: at("frequency_penalty", 0.0, 0.5, 1.0, seen=twice, note=seen),
        "presence_penalty": lambda: at("presence_penalty", 0.0, 0.5, 1.0, seen=twice, note=seen),
        "no_repeat_ngram_size": lambda: at(
            "no_repeat_ngram_size", 0, 2, 1, seen=once, note=f"so far: {' '.join(once)}"
        ),
        "dry_multiplier": lambda: at("dry_multiplier", 0.0, 0.4, 0.8, seen=loop, note=repeated),
        "dry_base": lambda: at("dry_base", 1.0, 1.75, 3.0, dry_multiplier=0.4, seen=loop, note=repeated),
        "dry_allowed_length": lambda: at("dry_allowed_length", 4, 2, 1, dry_multiplier=0.4, seen=loop, note=repeated),
        "dry_last_n": lambda: at("dry_last_n", 0, 7, -1, dry_multiplier=0.8, seen=loop, note=repeated),
        "dry_sequence_breakers": lambda: _breakers("dry_sequence_breakers", loop, repeated),
        "dry_breaker_token_ids": lambda: _breakers("dry_breaker_token_ids", loop, repeated),
        "logit_bias": lambda: LawPlot(
            settings={
                "{}": {},
                "{pond: 1.0}": {"logit_bias": {words()["pond"]: 1.0}},
                "{river: -inf}": {"logit_bias": {words()["river"]: _MINUS_INF}},
            },
            note="keys are token ids",
        ),
        "sequence_bias": lambda: LawPlot(
            settings={
                _listed(seq): {"sequence_bias": [(ids(*seq), 1.0)] if seq else None}
                for seq in ((), ("hill", "pond"), ("river", "pond"))
            },
            seen=("river",),
            note="1.0 for a sequence, so far: river",
        ),
        "allowed_token_ids": lambda: _named("allowed_token_ids", None, ("river", "hill"), ("pond",)),
        "bad_words": lambda: _named("bad_words", (), ("river",), ("river", "old")),
        "bad_words_token_ids": lambda: _named("bad_words_token_ids", (), ("pond",), ("pond", "hill")),
        "logits_processors": _processors,
    }


def _breakers(name: str, loop: Sequence[str], note: str) -> LawPlot:
    values = ((), ("hill",), ("pond",))
    company = {"dry_multiplier": 0.4, "dry_sequence_breakers": ()}
    settings = {
        _listed(value): {**company, name: value if name == "dry_sequence_breakers" else ids(*value)} for value in values
    }
    return LawPlot(settings=settings, seen=loop, note=note)


def _named(name: str, *values: Sequence[str] | None) -> LawPlot:
    """A plot of a parameter that takes words, or the ids of words."""
    made = {_listed(value): value if value is None or name == "bad_words" else ids(*value) for value in values}
    return LawPlot(settings={title: {name: value} for title, value in made.items()}, note=_which(name))


def _listed(value: Sequence[str] | None) -> str:
    return "None" if value is None else f"[{', '.join(value)}]"


def _which(name: str) -> str:
    return "" if name == "bad_words" else "the ids of these words"


def _processors() -> LawPlot:
    tirage.register_processor("more_likely", _more_likely, arg_names=("token", "by"), replace=True)
    pond = words()["pond"]
    named = {f"by={by}": [("more_likely", {"token": pond, "by": by})] for by in (0.5, 1.0, 2.0)}
    return LawPlot(
        settings={title: {"logits_processors": value} for title, value in named.items()},
        note="a processor of one's own that adds to the logit of pond",
    )


def reported(mode: str) -> NDArray[np.float64]:
    """float64 [V]: the probabilities that a draw reports in a `logprobs_mode`."""
    params = SamplingParams(
        temperature=0.5, top_p=0.8, presence_penalty=0.5, seed=7, logprobs_mode=mode, logprobs=logits().size
    )
    draw = tirage.sample(logits(), params, history=[((), ids("river"))])
    found = np.zeros(logits().size)
    found[draw.top_token_ids[0]] = np.exp(draw.top_logprobs[0].astype(np.float64))
    return found


def drawn_modes(name: str) -> str:
    """The plot of `logprobs_mode`: not a law that is drawn from but one that is reported."""
    modes = ("raw", "processed", "sampled")
    panels = [Panel(title=f"{mode!r}", before=_bars(reported("raw")), after=_bars(reported(mode))) for mode in modes]
    note = "temperature=0.5, top_p=0.8; presence_penalty=0.5 for river"
    return law_figure(name, labels=[*words(), "others"], panels=panels, note=note)


def drawn_stages() -> str:
    """The picture of the first page: the law of one token before and after two stages, and the token drawn."""
    params = SamplingParams(temperature=0.7, top_p=0.7, seed=7)
    stages = [SamplingParams(), params.replace(top_p=1.0), params]
    laws = [_bars(np.asarray(tirage.law(logits(), each)[0])) for each in stages]
    titles = ("model", f"temperature={params.temperature}", f"top_p={params.top_p}")
    panels = [
        Panel(title=title, before=before, after=after)
        for title, before, after in zip(titles, [laws[0], *laws], laws, strict=False)
    ]
    token = llm().tokenizer.decode([int(tirage.sample(logits(), params).token_ids[0])])
    note = f"Pale: before the stage. ×: cannot be drawn any more. seed=7 draws {token!r}."
    return law_figure(f"{PROMPT} …", labels=[*words(), "others"], panels=panels, note=note)
