"""Plots of texts: what a parameter does, at three values, to what the bundled model writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

from scripts.law_plots import PROMPT, ids, llm
from scripts.svg_figures import Strip, percent, strip_figure
from tirage import BeamSearchParams, GuidedDecodingParams, SamplingParams
from tirage.engine.completion import Sample
from tirage.operators.operator import counted
from tirage.params import FIELDS

_STORY = "Once upon a time"
_KNIGHT = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}


@dataclass(frozen=True, kw_only=True)
class TextPlot:
    """The texts of three settings of a parameter, and what else holds."""

    strips: Sequence[Strip]
    note: str = ""


def drawn(name: str, plot: TextPlot) -> str:
    """The plot of a file as SVG, titled by its parameter."""
    prefix = "" if name in FIELDS else name.partition("_")[0] + "_"
    return strip_figure(name.removeprefix(prefix), plot.strips, note=plot.note)


def pieces(ids: Iterable[int]) -> list[str]:
    """The texts of tokens as they stand in a figure; a line break is ⏎."""
    raw = (llm().tokenizer.token_bytes(token).decode("utf-8", "replace") for token in ids)
    return [text.replace("\n", "⏎") for text in raw]


def strip_of(title: str, sample: Sample, *, note: str = "", marked: int = -1) -> Strip:
    """A sample's tokens, and why it ended."""
    ended = sample.finish_reason or ""
    return Strip(title=title, tokens=pieces(sample.token_ids), note=note or ended, marked=marked)


def samples(prompt: str, **options: Any) -> tuple[Sample, ...]:
    """The samples of one request."""
    options = {"seed": 7, "max_tokens": 12, **options}
    return llm().generate(prompt, SamplingParams(**options))[0].samples


def texts(name: str, *values: Any, prompt: str = _STORY, note: str = "", **company: Any) -> TextPlot:
    """A plot of a parameter at some values, in company of others."""
    strips = [
        strip_of(f"{value!r}" if sample.index == 0 else "", sample)
        for value in values
        for sample in samples(prompt, **{**company, name: value})
    ]
    return TextPlot(strips=strips, note=note)


def guided(**constraints: Mapping[str, Any]) -> TextPlot:
    """A plot of constraints by their titles; one without options is none."""
    return TextPlot(strips=[_guided(title, options) for title, options in constraints.items()])


def switched(name: str, *values: Any, note: str = "", **company: Any) -> TextPlot:
    """A plot of an option of constraints at some values, in company of the constraint."""
    return TextPlot(strips=[_guided(f"{value!r}", {**company, name: value}) for value in values], note=note)


def _guided(title: str, options: Mapping[str, Any], **more: Any) -> Strip:
    constraint = GuidedDecodingParams(**options) if options else None
    [sample] = samples("The knight: ", guided_decoding=constraint, **{"max_tokens": 30, "seed": 7, **more})
    return strip_of(title, sample)


def of_json(*schemas: Mapping[str, Any]) -> TextPlot:
    """A plot of JSON schemas."""
    return guided(**{json.dumps(schema): {"json": schema} for schema in schemas})


def beams(name: str, *values: Any, prompt: str = _STORY, stop: Sequence[str] = (), **company: Any) -> TextPlot:
    """A plot of beam searches: their hypotheses, best first, each with its score."""
    strips = []
    for value in values:
        options = {"beam_width": 2, "max_tokens": 10, **company, name: value}
        found = llm().beam_search(prompt, BeamSearchParams(**options), sampling=SamplingParams(stop=stop))[0].samples
        for at, sample in enumerate(found):
            title, tokens = f"{value!r}" if not at else "", [sample.text] if stop else pieces(sample.token_ids)
            strips.append(Strip(title=title, tokens=tokens, note=f"{sample.score or 0:.2f}"))
    stopped = f", with stop={json.dumps(stop)}" if stop else ""
    return TextPlot(strips=strips, note=f"behind each hypothesis: its score{stopped}")


def _output_kinds() -> Iterator[Strip]:
    for kind in ("CUMULATIVE", "DELTA", "FINAL_ONLY"):
        params = SamplingParams(seed=7, max_tokens=4, output_kind=kind)
        deltas = list(llm().stream(_STORY, params))
        parts = [delta.completion.text if kind == "CUMULATIVE" and delta.completion else delta.text for delta in deltas]
        yield Strip(title=f"{kind!r}", tokens=parts, note=counted(len(deltas), "piece"))


def _listed(name: str, *values: int | None) -> Iterator[Strip]:
    for value in values:
        [sample] = samples(PROMPT, max_tokens=1, **{name: value})
        entries = [] if sample.logprobs is None else [sample.logprobs[0], *sample.logprobs[0].top]
        tokens = [f"{entry.text} {_chance(entry.logprob)} " for entry in entries]
        yield Strip(title=f"{value!r}", tokens=tokens, note="" if tokens else "nothing is reported")


def _chance(logprob: float) -> str:
    return percent(exp(logprob)).replace("&lt;", "<")


def _prompt_logprobs() -> Iterator[Strip]:
    for value in (None, 0, 1):
        [completion] = llm().generate(PROMPT, SamplingParams(max_tokens=1, seed=7, prompt_logprobs=value))
        entries = [entry for entry in (completion.prompt_logprobs or ())[:4] if entry is not None]
        tokens = [f"{each.text} {_chance(each.logprob)} " for entry in entries for each in (entry, *entry.top)]
        yield Strip(title=f"{value!r}", tokens=tokens, note="" if tokens else "nothing is reported")


def _forced() -> Iterator[Strip]:
    for value, close in ((None, False), ("canonical", False), ("canonical", True)):
        constraint = GuidedDecodingParams(json=_KNIGHT | {"required": ["name"]}, disable_additional_properties=True)
        [sample] = samples(
            "The knight: ", guided_decoding=constraint, forcing=value, close_grammar=close, max_tokens=40
        )
        title = f"{value!r}, close_grammar={close}" if close else f"{value!r}"
        yield strip_of(title, sample, note=f"{sample.forced_tokens} tokens not drawn")


def _prompts_cut() -> Iterator[Strip]:
    for value in (None, 4, 2):
        kept = len(llm().tokenizer.encode(PROMPT)) if value is None else value
        prompt = llm().tokenizer.encode(PROMPT)[-kept:]
        [sample] = samples(PROMPT, truncate_prompt_tokens=value, max_tokens=6)
        tokens = [*pieces(prompt), *pieces(sample.token_ids)]
        yield Strip(title=f"{value!r}", tokens=tokens, marked=len(prompt))


def _undecoded() -> Iterator[Strip]:
    for value in (True, False):
        [sample] = samples(_STORY, detokenize=value, max_tokens=8)
        tokens = pieces(sample.token_ids) if sample.text else [f"{token} " for token in sample.token_ids]
        yield Strip(title=f"{value!r}", tokens=tokens)


def _text_alone(name: str, *values: Any, prompt: str, **company: Any) -> Iterator[Strip]:
    for value in values:
        [sample] = samples(prompt, **{**company, name: value})
        yield Strip(title=f"{value!r}", tokens=[sample.text])


def _chosen_ids() -> Iterator[Strip]:
    for chosen in ((), ids("pond"), ids("pond", "hill")):
        [sample] = samples(PROMPT, max_tokens=1, logprob_token_ids=chosen)
        given = sample.logprobs[0].given if sample.logprobs else ()
        shown = [f"{piece} {_chance(logprob)} " for piece, (_, logprob) in zip(pieces(chosen), given, strict=True)]
        yield Strip(title=f"{[*chosen]}", tokens=shown, note="" if shown else "nothing is reported")


def _of_sampling() -> Mapping[str, Callable[[], TextPlot]]:
    full_stop = llm().tokenizer.encode("end.", add_special_tokens=False)[-1]
    end = "And so they went home."
    return {
        "seed": lambda: texts("seed", 7, 8, 7, note="the same seed, the same text"),
        "max_tokens": lambda: texts("max_tokens", 4, 8, 16),
        "min_tokens": lambda: texts("min_tokens", 0, 10, 20, stop=["."], max_tokens=40, note='with stop=["."]'),
        "stop": lambda: texts("stop", [], ["."], ["boy"], max_tokens=16),
        "stop_token_ids": lambda: texts(
            "stop_token_ids", [], [full_stop], max_tokens=16, note=f"{full_stop} is the full stop"
        ),
        "stop_pattern": lambda: texts("stop_pattern", None, r"[.!?]", r"\bH\w+", max_tokens=16),
        "include_stop_str_in_output": lambda: TextPlot(
            strips=[*_text_alone("include_stop_str_in_output", False, True, prompt=_STORY, stop=["."], max_tokens=30)],
            note='with stop=["."]',
        ),
        "ignore_eos": lambda: texts("ignore_eos", False, True, prompt=end, note=f'after "{end}"'),
        "truncate_prompt_tokens": lambda: TextPlot(strips=[*_prompts_cut()], note="orange: what is new"),
        "n": lambda: texts("n", 1, 2, 3, max_tokens=8),
        "best_of": lambda: texts("best_of", 1, 2, 8, max_tokens=10, temperature=1.2, note="with n=1, temperature=1.2"),
        "logprobs": lambda: TextPlot(
            strips=[*_listed("logprobs", None, 0, 3)], note="of the first token: the drawn one, then the likeliest"
        ),
        "prompt_logprobs": lambda: TextPlot(
            strips=[*_prompt_logprobs()],
            note="tokens 2 to 4 of the prompt; with 1 each is followed by the likeliest one in its place",
        ),
        "logprob_token_ids": lambda: TextPlot(strips=[*_chosen_ids()], note="of the first token"),
        "detokenize": lambda: TextPlot(strips=[*_undecoded()]),
        "skip_special_tokens": lambda: TextPlot(
            strips=[*_text_alone("skip_special_tokens", True, False, prompt=end, ignore_eos=True)]
        ),
        "output_kind": lambda: TextPlot(
            strips=[*_output_kinds()], note="each box: one piece of a stream of four tokens"
        ),
        "bad_words_level": lambda: texts(
            "bad_words_level",
            "sequence",
            "text",
            temperature=0,
            bad_words=["live"],
            note='with bad_words=["live"], temperature=0',
        ),
        "close_grammar": lambda: TextPlot(
            strips=[
                _guided("False", {"json": _KNIGHT}, max_tokens=10),
                _guided("True", {"json": _KNIGHT}, close_grammar=True, max_tokens=10),
                _guided("True, max_tokens=5", {"json": _KNIGHT}, close_grammar=True, max_tokens=5),
            ],
            note="with a JSON schema of an object and max_tokens=10",
        ),
        "forcing": lambda: TextPlot(strips=[*_forced()], note="with a JSON schema of an object"),
        "guided_decoding": lambda: guided(**{
            "None": {},
            "a regular expression": {"regex": r"\d{4}-\d{2}"},
            "a choice": {"choice": ["yes", "no"]},
        }),
    }


def _of_constraints() -> Mapping[str, Callable[[], TextPlot]]:
    patterns, grammars = (
        (r"\d{4}-\d{2}", "(ha ){2,4}", r"\d+ cm"),
        ('root ::= "ha " root | "end"', 'root ::= [a-c]+ "."', 'start: "<" start ">" | "x"'),
    )
    choices = (["yes", "no"], ["red", "blue", "green"], ["none"])
    closed = {"type": "object", "properties": {"name": {"enum": ["Leo", "Mia"]}}, "required": ["name"]}
    list_ = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}
    return {
        "json": lambda: of_json({"type": "boolean"}, {"enum": ["red", "blue"]}, {"type": "integer", "minimum": 5}),
        "regex": lambda: guided(**{each: {"regex": each} for each in patterns}),
        "choice": lambda: guided(**{f"{each!r}": {"choice": each} for each in choices}),
        "grammar": lambda: guided(**{each: {"grammar": each} for each in grammars}),
        "json_object": lambda: guided(**{"None": {}, "True": {"json_object": True}}),
        "disable_any_whitespace": lambda: switched(
            "disable_any_whitespace", False, True, json=list_, note="with a JSON schema of integers"
        ),
        "disable_additional_properties": lambda: switched(
            "disable_additional_properties", False, True, json=closed, note="with a JSON schema that names one property"
        ),
        "whitespace_pattern": lambda: switched(
            "whitespace_pattern", None, " ?", r"\n", json=list_, note="with a JSON schema of integers"
        ),
        "structural_tag": lambda: guided(**{
            each: {"structural_tag": _tag(each)} for each in (r"\d+", "(yes|no)", "[a-z]{3}")
        }),
    }


def _tag(pattern: str) -> str:
    """Constrained text between tags and nothing else, in xgrammar's form."""
    content = {"type": "regex", "pattern": pattern}
    return json.dumps({
        "type": "structural_tag",
        "format": {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"},
    })


def _of_beams() -> Mapping[str, Callable[[], TextPlot]]:
    end = {"prompt": "And so they went home."}
    return {
        "beam_width": lambda: beams("beam_width", 1, 2, 3),
        "max_tokens": lambda: beams("max_tokens", 4, 8, 12),
        "ignore_eos": lambda: beams("ignore_eos", False, True, **end),
        "temperature": lambda: beams("temperature", 0.0, 0.5, 3.0),
        "length_penalty": lambda: beams("length_penalty", -2.0, 0.0, 2.0, **end, max_tokens=16),
        "include_stop_str_in_output": lambda: beams("include_stop_str_in_output", False, True, stop=["named"]),
        "early_stopping": lambda: beams("early_stopping", False, True, "never", **end, max_tokens=16),
        "num_return_sequences": lambda: beams("num_return_sequences", None, 1, 2, beam_width=3),
    }


def plots() -> dict[str, Callable[[], TextPlot]]:
    """The plots by the names of their files; each is made when it is drawn."""
    return {
        **_of_sampling(),
        **{f"guided_{name}": plot for name, plot in _of_constraints().items()},
        **{f"beam_{name}": plot for name, plot in _of_beams().items()},
    }
