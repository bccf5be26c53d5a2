"""The parameter reference, docs/parameters.md, written from the field tables.

`python -m tirage.params.reference docs/parameters.md` writes the page; without a path it is printed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from tirage.fields.record import FieldSpec, specs
from tirage.params.beam import BeamSearchParams
from tirage.params.groups import grouped
from tirage.params.guided import GuidedDecodingParams
from tirage.params.sampling import SamplingParams

_INTRO = """\
# Parameters

<!-- Written by `make docs` from the tables in the source: change the table, not the page. -->

The three classes are frozen and hashable, and take their options by name. A value that breaks a rule, an
unknown option, and options that contradict each other raise `tirage.ParamsError`, whose message says what is
wrong, what was given and what to do:

```pycon
>>> import tirage
>>> tirage.SamplingParams(top_p=0.0)
Traceback (most recent call last):
    ...
tirage.errors.ParamsError: top_p must be in (0, 1], got 0.0; use 1.0 to turn it off

```

Numbers must be finite; True and False are no numbers; NumPy scalars become Python numbers. Lists of strings
and of ids may be lists, tuples, sets, ranges or one-dimensional arrays, and become tuples without duplicates.
Ranges of floats hold for the value and for its binary32 form, which is what the sampler computes with; what
you gave is what `to_dict` shows.

In the plots of laws a pale bar is the probability without the parameter, a full one the probability with it, and a
cross a token that can no longer be drawn; the bundled model continues "The little girl went to the". In the plots of
texts each box is a token. All are real runs, drawn by `scripts/parameter_plots.py`.

Every class has `to_dict`, `from_dict`, `to_json`, `from_json` (an exact round trip, with a `schema` version)
and `replace`, which checks the whole again.
"""

_TOGETHER = """\
### Together

* `best_of >= n`, and `min_tokens <= max_tokens` when `max_tokens` is a number.
* `stop` and `stop_pattern` need `detokenize=True`.
* A parameter that is not off needs its stage in the chosen `semantics`. Masks (`allowed_token_ids`, bad
  words, `min_tokens`) exist under every semantics.
* `presence_penalty` and `frequency_penalty` stay within the limit of the semantics: 2 for most, none for
  those of engines that have none.
* `temperature=0` is refused under a semantics without greedy decoding.
* Every name in `logits_processors` is registered, and every key of `extra_args` is declared by one of them.
* {readers} look back at the tokens so far: `tirage.sample`, `law` and `explain`
  refuse them without a `history` (of the words those of several tokens, of the processors those that read it).
"""


WITHOUT_PLOT: dict[str, str] = {
    "extra_args": "another way to write the arguments of logits_processors",
    "return_kept": "does not change the text",
    "max_kept_ids": "ends a text with an error or not",
    "spaces_between_special_tokens": "needs a tokenizer with several special tokens in a row",
    "reasoning_parser": "needs a model that reasons",
    "thinking_budget": "needs a model that reasons",
    "eos_token_ids": "set by a method",
    "adaptive_decay": "changes the tokens after the first",
    "watermark": "changes the law by a key, see [watermarks](watermarks.md)",
    "mirostat_eta": "changes the tokens after the first",
    "tokenized": "set by a method",
    "guided_backend": "does not change the text",
    "guided_backend_was_auto": "does not change the text",
    "guided_disable_fallback": "does not change the text",
    "guided_strict_schema": "refuses or not",
    "guided_enable_in_reasoning": "needs a model that reasons",
}
"""The plots that there are not, by their names, and why."""


def page() -> str:
    """The whole page, ending in a newline."""
    table = specs(SamplingParams)
    parts = [_INTRO, "## SamplingParams\n\nOne request.\n"]
    methods = [name for name, spec in table.items() if not spec.public]
    for heading, names in {**grouped(), "Set by methods": methods}.items():
        parts += [f"### {heading}\n", *(_entry(table[name], plot=name) for name in names)]
    readers = [f"`{name}`" for name, spec in table.items() if spec.needs_history]
    parts += [_TOGETHER.format(readers=", ".join(readers))]
    parts += _section(GuidedDecodingParams, "A constraint on the text; exactly one mode is given.", prefix="guided_")
    parts += _section(BeamSearchParams, "A beam search.", prefix="beam_")
    return "\n".join(parts)


def plots() -> list[str]:
    """The names of all plots of the page, in their order."""
    return re.findall(r"\(plots/(\w+)\.svg\)", page())


def _section(kind: type[Any], summary: str, *, prefix: str) -> Iterator[str]:
    yield f"## {kind.__name__}\n\n{summary}\n"
    for name, spec in specs(kind).items():
        yield _entry(spec, plot=prefix + name)


def _entry(spec: FieldSpec, *, plot: str) -> str:
    """A parameter: its meaning, what it may be, and its plot."""
    lines = [f"#### {spec.name}\n", f"{spec.meaning[0].upper()}{spec.meaning[1:]}.\n", f"{_facts(spec)}\n"]
    if plot not in WITHOUT_PLOT:
        lines.append(f"![What {spec.name} does at three values](plots/{plot}.svg)\n")
    return "\n".join(lines)


def _facts(spec: FieldSpec) -> str:
    facts = [f"Value: {spec.rule.text}"]
    off = spec.has_off and spec.off == spec.default
    facts.append("required" if spec.default is MISSING else f"default {_code(spec.default)}{', which is off' * off}")
    if spec.has_off and not off:
        facts.append(f"off {_code(spec.off)}")
    if spec.stage:
        facts.append(f"stage `{spec.stage}`")
    return " · ".join([*facts, f"from {spec.source}"])


def _code(value: object) -> str:
    return f"`{value}`" if hasattr(value, "name") else f"`{value!r}`"


def main(arguments: list[str]) -> None:
    """Writes the page to the path given, or prints it."""
    if arguments:
        Path(arguments[0]).write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
