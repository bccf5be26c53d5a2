"""The tables in docs/coming_from/*.md: `python scripts/coming_from.py` writes them anew.

Names, defaults and refusals come from `tirage.dialects`, what parameters mean from `tirage.semantics`. Engines without
a dialect have their parameters in `PEERS`; tests hold these to the classes in `tirage.compat` and to mlx-lm itself.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tirage.dialects import DIALECTS, FieldMapping
from tirage.fields.record import specs
from tirage.operators import OPERATORS
from tirage.params import FIELDS, GuidedDecodingParams
from tirage.semantics import PRESETS, Semantics

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "coming_from"
FIELD_FILES = ROOT / "tests" / "peers" / "fields"

GUIDED_FIELDS = specs(GuidedDecodingParams)

TIES = {"index": "the lowest ids stay", "all": "all stay"}
PAST = {"both": "prompt and output", "output": "output", "prompt": "prompt"}


@dataclass(frozen=True)
class Option:
    """An option of Semantics in words: the stages that it is about, its name, and what each of its values means."""

    stages: tuple[str, ...]
    title: str
    words: Mapping[Any, str]


GREEDY = {
    "argmax": "the largest logit that filters before the temperature leave",
    "first": "the largest logit of all",
    "refused": "refused",
}

OPTIONS = {
    "top_k_ties": Option(("top_k",), "equal logits at the cut of `top_k`", TIES),
    "top_k_limit": Option(("top_k",), "`top_k` at most", {None: "any"}),
    "top_k_one": Option(("top_k",), "`top_k` 1", {"cut": "keeps ties as any other", "argmax": "is the largest logit"}),
    "top_p_ties": Option(("top_p",), "equal logits at the cut of `top_p`", TIES),
    "top_p_rule": Option(
        ("top_p",),
        "`top_p` keeps a token while the mass before it is",
        {
            "lt": "below `top_p`",
            "le": "at most `top_p`",
            "truncated": "below `top_p`; the last token keeps only its part below",
        },
    ),
    "top_p_scope": Option(
        ("top_p",),
        "`top_p` judges the mass of",
        {
            "sequential": "what earlier filters left",
            "joint": "all tokens",
            "joint_unless_min_p": "all tokens; with `min_p`, what earlier filters left",
            "joint_unless_top_k": "all tokens; with `top_k`, what earlier filters left",
        },
    ),
    "min_p_rule": Option(
        ("min_p",),
        "`min_p` keeps a probability",
        {
            "ge": "of at least `min_p` × the largest",
            "gt": "above `min_p` × the largest",
            "logit_ratio": "where the *logit* is at least `min_p` × the largest logit",
        },
    ),
    "typical_rule": Option(
        ("typical",),
        "`typical_p` stops when the mass",
        {"lt": "reaches it", "gt": "exceeds it"},
    ),
    "typical_ties": Option(("typical",), "equally typical tokens at the cut of `typical_p`", TIES),
    "xtc_rule": Option(("xtc",), "XTC removes tokens", {"ge": "at its threshold too", "gt": "above its threshold"}),
    "xtc_ties": Option(
        ("xtc",),
        "of equal logits that XTC would leave as the least likely",
        {"index": "the highest id stays", "all": "all stay"},
    ),
    "entropy_count": Option(
        ("temperature",),
        "the largest entropy of `dynatemp_range` counts",
        {"candidates": "the tokens left", "listed": "forbidden tokens too, until a filter removes them"},
    ),
    "temperature_floor": Option(("temperature",), "temperatures above 0 are at least", {None: "as asked"}),
    "repetition_history": Option(("repetition",), "`repetition_penalty` counts", PAST),
    "frequency_history": Option(("frequency",), "`frequency_penalty` counts", PAST),
    "presence_history": Option(("presence",), "`presence_penalty` counts", PAST),
    "bad_words_history": Option((), "a bad word may begin in", {"output": "output", "both": "prompt or output"}),
    "bad_words_eos": Option((), "a bad word that is one EOS token", {"banned": "is banned", "dropped": "is ignored"}),
    "penalty_window": Option(("repetition", "frequency", "presence"), "penalties look back at", {None: "everything"}),
    "frequency_divisor": Option(
        ("frequency",),
        "`frequency_penalty` is",
        {"none": "multiplied by the count", "length": "multiplied by the count over the length"},
    ),
    "penalty_limit": Option(("frequency", "presence"), "frequency and presence penalties", {math.inf: "of any size"}),
    "greedy": Option((), "`temperature` 0", GREEDY),
    "mask_mode": Option(
        (),
        "a constraint is applied",
        {"first": "before everything", "resample": "after the draw: a token that it forbids is drawn again under it"},
    ),
}
"""Every option but names and stages; a value without words of its own is a number."""


# --- what parameters mean ------------------------------------------------------------------------------------------


def meaning(*names: str) -> str:
    """Canonical and these presets beside each other: what differs, and the parameters that a preset lacks."""
    presets = [PRESETS[name] for name in ("canonical", *names)]
    rows = [row(title, cells) for title, cells in differences(presets)]
    head = row("", [f"`{preset.name}`" if preset.name == "canonical" else f"`{preset.label}`" for preset in presets])
    return "\n".join([head, row("---", ["---"] * len(presets)), *rows]) + "\n\n" + missing(presets[1:])


def differences(presets: list[Semantics]) -> Iterable[tuple[str, list[str]]]:
    """The orders of the stages, and each option in which two presets differ."""
    common = {stage for preset in presets[1:] for stage in preset.stages}
    for title, filters in (("order of what changes logits", False), ("order of the filters", True)):
        orders = [order(preset, common, filters=filters) for preset in presets]
        if len(set(orders)) > 1:
            yield title, orders
    for name, option in OPTIONS.items():
        if option.stages and not common.intersection(option.stages):
            continue
        cells = [cell(preset, name, option) for preset in presets]
        if len(set(cells) - {""}) > 1:
            yield option.title, cells


def order(preset: Semantics, common: set[str], *, filters: bool) -> str:
    """The stages of a preset in their order, those that no other one has left out."""
    found = [stage for stage in preset.stages if stage in common and OPERATORS[stage].is_filter == filters]
    return ", ".join(found) or "none"


def cell(preset: Semantics, name: str, option: Option) -> str:
    """The value of an option in words; nothing where the preset has no such stage."""
    if option.stages and not set(option.stages).intersection(preset.stages):
        return ""
    value = getattr(preset, name)
    numbers = {"penalty_window": "the last {} tokens", "penalty_limit": "of at most {:g}", "top_k_limit": "{}"}
    numbers["temperature_floor"] = "{:g}"
    return option.words[value] if value in option.words else numbers[name].format(value)


def missing(presets: list[Semantics]) -> str:
    """Which parameters a preset has no stage for, in a sentence for those that lack the same."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for preset in presets:
        groups.setdefault(lacking(preset), []).append(f"`{preset.name}`")
    sentences = [
        f"Under {joined(names)} these are refused, as there is no stage for them: {', '.join(lacked)}.\n"
        for lacked, names in groups.items()
    ]
    return "\n".join(sentences)


def joined(names: list[str]) -> str:
    """`a`, `b` and `c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def lacking(preset: Semantics) -> tuple[str, ...]:
    """The parameters whose stage a preset does not have; its `scale` reads the temperature, too."""
    known = {name for name, spec in FIELDS.items() if spec.stage in preset.stages}
    known |= {"temperature"} if "scale" in preset.stages else set()
    return tuple(f"`{name}`" for name, spec in FIELDS.items() if spec.has_off and spec.stage and name not in known)


# --- fields of a dialect -------------------------------------------------------------------------------------------


def fields(dialect: str) -> str:
    """Their fields and ours: in a sentence where name, default and values are the same, otherwise in a table."""
    entries = [*DIALECTS[dialect].dialect.entries.values()]
    same = [f"`{entry.name}`" for entry in entries if is_same(entry)]
    first = {entry.ours: entry for entry in reversed(entries)}
    rows = [field_row(entry, first[entry.ours]) for entry in entries if not is_same(entry)]
    sentence = f"The same in name, default and values: {', '.join(same)}. Of the others, an empty place is as here:\n"
    return sentence + "\n" + table(("there", "here", "when left out", "values taken"), rows)


def is_same(entry: FieldMapping) -> bool:
    """Whether a field of theirs is one of ours in every respect."""
    spec = FIELDS.get(entry.name)
    if spec is None or entry.ours != (entry.name,):
        return False
    return shown(entry.default) == shown(spec.rule.dump(spec.default)) and entry.rule.text == spec.rule.text


def field_row(entry: FieldMapping, first: FieldMapping) -> list[str]:
    """A field of theirs, our names of it, and where they are not ours its default and its values.

    One that is another spelling of the `first` field has its default.
    """
    names = [name for name in entry.ours if name in FIELDS and (name != "guided_decoding" or not entry.ours[1:])]
    modes = [name for name in entry.ours if name in GUIDED_FIELDS]
    ours = [FIELDS[name] for name in names] or [FIELDS["guided_decoding"]]
    here = ", ".join(f"`{name}`" for name in [*names, *(f"guided_decoding.{mode}" for mode in modes)])
    rules = [spec.rule.text for spec in (*ours, *(GUIDED_FIELDS[mode] for mode in modes))]
    values = "" if entry.rule.text in rules else entry.rule.text
    default = shown(ours[0].rule.dump(ours[0].default))
    absent = f"as `{first.name}`" if entry.default is None is not first.default else shown(entry.default)
    absent = "" if absent == default else absent if absent[0] == "a" else f"{absent}, here {default}"
    return [f"`{entry.name}`", here, absent, values]


def refused(dialect: str) -> str:
    """The fields without a part here by the reason, with the values at which they are taken."""
    fields = DIALECTS[dialect].dialect.unsupported
    return refusals((name, [json.dumps(value) for value in each.inert], each.reason) for name, each in fields.items())


def refused_by_route(peer: str, kind: str) -> str:
    """The same of a request class of the peer, as tests/peers/fields has it of our route."""
    with (FIELD_FILES / f"{peer}.csv").open(encoding="utf-8", newline="") as lines:
        found = [line for line in csv.DictReader(lines) if line["kind"] == kind and line["reason"]]
    return refusals(
        (line["field"], map(json.dumps, json.loads(line["inert"] or "[]")), line["reason"]) for line in found
    )


def refusals(fields: Iterable[tuple[str, Iterable[str], str]]) -> str:
    """A table of names, inert values and reasons, by the reason."""
    groups: dict[str, list[str]] = {}
    for name, inert, reason in fields:
        values = ", ".join(inert)
        groups.setdefault(reason, []).append(f"`{name}` ({values})" if values else f"`{name}`")
    return table(("refused", "why, or what instead"), [[", ".join(names), why] for why, names in groups.items()])


# --- parameters of engines without a dialect -----------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    """A parameter of theirs: its default as they write it, and what it is here."""

    name: str
    default: str
    here: str


def _parameters(text: str) -> tuple[Parameter, ...]:
    return tuple(Parameter(*(part.strip() for part in line.split("|"))) for line in text.strip().splitlines())


PEERS: Mapping[str, tuple[tuple[str, tuple[Parameter, ...]], ...]] = {
    "mlx": (
        (
            "make_sampler",
            _parameters("""
                temp | 0.0 | `temperature`
                top_p | 0.0 | `top_p`; 0 is off there, and 1 here
                min_p | 0.0 | `min_p`
                min_tokens_to_keep | 1 | nothing: the likeliest token always stays
                top_k | 0 | `top_k`
                xtc_probability | 0.0 | `xtc_probability`
                xtc_threshold | 0.1 | `xtc_threshold`
                xtc_special_tokens | None | `xtc_protected_ids`
            """),
        ),
        (
            "make_logits_processors",
            _parameters("""
                logit_bias | None | `logit_bias`
                repetition_penalty | None | `repetition_penalty`; None is 1
                repetition_context_size | 20 | `penalty_window` of the semantics, one for all three
                presence_penalty | None | `presence_penalty`; None is 0
                presence_context_size | 20 | `penalty_window`
                frequency_penalty | None | `frequency_penalty`; None is 0
                frequency_context_size | 20 | `penalty_window`
            """),
        ),
    ),
    "mindie": (
        (
            "SamplingParam",
            _parameters("""
                repetition_penalty | None | `repetition_penalty`
                frequency_penalty | None | `frequency_penalty`
                presence_penalty | None | `presence_penalty`
                temperature | None | `temperature`
                top_k | None | `top_k`
                top_p | None | `top_p`; 0 is one token
                seed | None | `seed`
                do_sample | None | `temperature`: 0 where it is False
                to_tensor | None | nothing: results are of the library of the logits
            """),
        ),
        (
            "SamplingData",
            _parameters("""
                all_input_ids | None | `history` of `tirage.sample`: prompt and output
                output_ids | None | the output of the `history`
                to_tensor | None | nothing, as above
                is_prefill | True | nothing: a history without output is that
                request_ids | None | nothing: no state is kept
            """),
        ),
    ),
    "gemma": (
        ("Greedy", ()),
        ("RandomSampling", _parameters("temperature | 1.0 | `temperature`")),
        (
            "TopkSampling",
            _parameters("""
                temperature | 1.0 | `temperature`
                k | 1 | `top_k`
            """),
        ),
        (
            "TopPSampling",
            _parameters("""
                p | 0.9 | `top_p`; 0 or less is greedy, 1 or more is off
                temperature | 1.0 | `temperature`
            """),
        ),
        (
            "Sampler",
            _parameters("""
                sampling | Greedy() | `temperature`, `top_k`, `top_p` and `semantics`, as above
                forbidden_tokens | None | `bad_words_token_ids`
                stop_tokens | None | `stop_token_ids`
                cache_length | 4096 | `LLM(cache_length=...)`
                max_out_length | 2048 | `max_tokens`
                pad_length | (256, 512, 1024) | nothing: prompts are not padded
            """),
        ),
        (
            "Sampler.sample",
            _parameters("""
                max_new_tokens | None | `max_tokens`
                stream | False | `LLM.stream`
                sampling | None | `SamplingParams` of the request
                rng | None | `seed`
            """),
        ),
    ),
}
"""The parameters of mlx-lm's samplers, MindIE's and gemma's, by class or function."""

EASYDEL_DOCUMENTED = 29
"""How many parameters EasyDeL documents; they are our first ones, in this order."""


def peers(peer: str) -> str:
    """The parameters of an engine without a dialect, by class or function."""
    rows = [
        [f"`{owner}`", f"`{each.name}`", f"`{each.default}`", each.here]
        for owner, parameters in PEERS[peer]
        for each in parameters
    ]
    return table(("of", "there", "default there", "here"), rows)


def positional() -> str:
    """EasyDeL's parameters in their order."""
    return ", ".join(f"`{name}`" for name in list(FIELDS)[:EASYDEL_DOCUMENTED]) + ".\n"


# --- Markdown ------------------------------------------------------------------------------------------------------


def shown(value: Any) -> str:
    """A plain value as Python writes it; nothing for an empty list."""
    plain = None if value in ((), []) else value
    return f"`{plain!r}`"


def row(title: str, cells: Iterable[str]) -> str:
    """A line of a table."""
    return "| " + " | ".join(text.replace("|", "\\|") for text in (title, *cells)) + " |"


def table(head: tuple[str, ...], rows: Iterable[list[str]]) -> str:
    """A table with a head."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(row(first, rest) + "\n" for first, *rest in lines)


PAGES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "sglang": {
        "fields": lambda: fields("sglang"),
        "meaning": lambda: meaning("sglang", "sglang-pytorch", "flashinfer"),
        "refused": lambda: refused("sglang"),
    },
    "vllm": {
        "fields": lambda: fields("vllm"),
        "meaning": lambda: meaning("vllm", "vllm-v1"),
        "refused": lambda: refused("vllm"),
    },
    "huggingface": {
        "fields": lambda: fields("hf"),
        "meaning": lambda: meaning("hf"),
        "refused": lambda: refused("hf"),
    },
    "llamacpp": {
        "fields": lambda: fields("llamacpp"),
        "meaning": lambda: meaning("llamacpp"),
        "refused": lambda: refused("llamacpp"),
    },
    "fastdeploy": {
        "fields": lambda: fields("fastdeploy"),
        "meaning": lambda: meaning("fastdeploy-base", "fastdeploy-base_non_truncated", "fastdeploy-rejection"),
        "refused": lambda: refused_by_route("fastdeploy", "ChatCompletionRequest"),
    },
    "mlx": {"fields": lambda: peers("mlx"), "meaning": lambda: meaning("mlx")},
    "gemma": {"fields": lambda: peers("gemma"), "meaning": lambda: meaning("gemma-topk", "gemma-topp")},
    "easydel": {"fields": positional, "meaning": lambda: meaning("easydel", "easydel-strict")},
    "mindie": {"fields": lambda: peers("mindie"), "meaning": lambda: meaning("mindie", "mindie-npu")},
}
"""What stands between `<!-- NAME -->` and `<!-- /NAME -->` on each page."""


def filled(page: str, text: str) -> str:
    """The text of a page with its tables up to date; ValueError where a table has no place."""
    for name, make in PAGES[page].items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if len(block.findall(text)) != 1:
            raise ValueError(f"{page}.md must have one place between <!-- {name} --> and <!-- /{name} -->")
        content = make().strip("\n")
        text = block.sub(lambda found, content=content: f"{found[1]}\n{content}\n\n{found[2]}", text)
    return text


def main() -> None:
    """Writes the tables of all pages."""
    for page in PAGES:
        path = FOLDER / f"{page}.md"
        path.write_text(filled(page, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
