"""The parameter reference, docs/parameters.md, written from the field tables.

`python -m tirage.params.reference docs/parameters.md` writes the page; without a path it is printed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from tirage.fields.record import FieldSpec, specs
from tirage.params.beam import BeamSearchParams
from tirage.params.guided import GuidedDecodingParams
from tirage.params.sampling import SamplingParams

_INTRO = """\
# Parameters

This page is written from the tables in the source (`python -m tirage.params.reference docs/parameters.md`);
change the table, not the page.

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


def page() -> str:
    """The whole page, ending in a newline."""
    parts = [_INTRO]
    parts += _section(SamplingParams, "One request.")
    readers = [f"`{name}`" for name, spec in specs(SamplingParams).items() if spec.needs_history]
    parts += [_TOGETHER.format(readers=", ".join(readers))]
    parts += _section(GuidedDecodingParams, "A constraint on the text; exactly one mode is given.")
    parts += _section(BeamSearchParams, "A beam search.")
    return "\n".join(parts)


def _section(kind: type[Any], summary: str) -> Iterator[str]:
    table = list(specs(kind).values())
    yield f"## {kind.__name__}\n\n{summary}\n"
    yield _table([spec for spec in table if spec.public])
    derived = [spec for spec in table if not spec.public]
    if derived:
        yield "### Set by methods\n\nThese are part of the JSON form too.\n"
        yield _table(derived)


def _table(table: list[FieldSpec]) -> str:
    rows = ["| name | value | default | off | stage | meaning | source |", "|---|---|---|---|---|---|---|"]
    rows += [_row(spec) for spec in table]
    return "\n".join(rows) + "\n"


def _row(spec: FieldSpec) -> str:
    default = "required" if spec.default is MISSING else _code(spec.default)
    off = _code(spec.off) if spec.has_off else ""
    cells = [f"`{spec.name}`", spec.rule.text, default, off, spec.stage or "", spec.meaning, spec.source]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


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
