"""`tirage convert`: a request of one engine in another engine's words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tirage.cli.given import read_file, stdin_for
from tirage.cli.output import QuietOption, note
from tirage.errors import ParamsError, nearest
from tirage.fields.rules import shown
from tirage.params import FIELDS

if TYPE_CHECKING:
    from tirage.dialects import Conversion, LawChange


_BAD_ARRAYS = (ValueError, EOFError, TypeError, OverflowError, MemoryError, TokenError)
"""What NumPy raises for headers that are cut off, declare no array, or one larger than the memory."""


def convert(
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="a file of JSON; - reads it from stdin")],
    source: Annotated[str, typer.Option("--from", metavar="NAME", help="the dialect that it is in, such as sglang")],
    target: Annotated[str, typer.Option("--to", metavar="NAME", help="the dialect that it is wanted in, such as vllm")],
    from_semantics: Annotated[
        str | None, typer.Option(metavar="PRESET", help="another preset than the dialect's, such as sglang-pytorch")
    ] = None,
    to_semantics: Annotated[str | None, typer.Option(metavar="PRESET", help="the same of the target")] = None,
    logits: Annotated[
        Path | None, typer.Option(metavar="FILE", help="logits [V] or [B, V] as .npy: how their law changes")
    ] = None,
    prompt_ids: Annotated[
        str, typer.Option(metavar="IDS", help="tokens of the prompt before these logits, such as 5,17")
    ] = "",
    output_ids: Annotated[str, typer.Option(metavar="IDS", help="tokens written before these logits")] = "",
    strict: Annotated[bool, typer.Option("--strict", help="exit status 1 when something cannot be said")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print everything as one JSON object")] = False,
    quiet: QuietOption = False,
) -> None:
    """Print a request in another engine's words; what it means there, and what it cannot say, goes to stderr.

    With --logits, [V] or [B, V], it also tells how their law changes: total variation, tokens gained and lost.
    """
    from tirage.dialects import convert as converted

    check_dialects({"--from": source, "--to": target})
    check_presets({"--from-semantics": from_semantics, "--to-semantics": to_semantics})
    found = converted(
        read_request(request), source, target, source_semantics=from_semantics, target_semantics=to_semantics
    )
    change = law_change(found, logits, prompt_ids, output_ids)
    if as_json:
        law = {} if change is None else {"law": change.to_dict()}
        print(json.dumps({**found.to_dict(), **law}, ensure_ascii=False))
    else:
        print(json.dumps(dict(found.request), ensure_ascii=False, indent=2), flush=True)
        for line in [] if quiet else [*found.lines(), *([] if change is None else change.lines())]:
            note(line)
    raise typer.Exit(1 if strict and found.lost else 0)


def check_dialects(given: Mapping[str, str]) -> None:
    """Raises ParamsError for an option that names no dialect."""
    from tirage.dialects import DIALECTS

    for option, name in given.items():
        if name not in DIALECTS:
            raise ParamsError(f"{option} must be one of {', '.join(DIALECTS)}, got {name!r}{nearest(name, DIALECTS)}")


def check_presets(given: Mapping[str, str | None]) -> None:
    """Raises ParamsError for an option that names no preset; None is one that was not given."""
    for option, name in given.items():
        try:
            FIELDS["semantics"].check("canonical" if name is None else name)
        except ParamsError as error:
            raise ParamsError(option + str(error).removeprefix("semantics")) from None


def read_request(path: Path) -> dict[str, Any]:
    """The object in a file of JSON, or on stdin for -. Raises ParamsError for anything else."""
    source = stdin_for("REQUEST -") if str(path) == "-" else None
    try:
        text = read_file(path) if source is None else source.read()
        found = json.loads(text)
    except OSError as error:
        raise ParamsError(f"REQUEST must be readable, got {path}: {error.strerror}") from None
    except ParamsError:
        raise
    except (ValueError, RecursionError) as error:
        raise ParamsError(f"REQUEST must be JSON, got {path}: {error}") from None
    if not isinstance(found, dict):
        raise ParamsError(f"REQUEST must be a JSON object, got {shown(found)}")
    return found


def law_change(found: Conversion, logits: Path | None, prompt_ids: str, output_ids: str) -> LawChange | None:
    """How the law of the logits in a file, [V] or [B, V], changes; None without a file.

    Raises ParamsError for tokens of a history without logits after them, and for files and ids that cannot be read.
    """
    if logits is None:
        if prompt_ids or output_ids:
            raise ParamsError(
                "--prompt-ids and --output-ids must go with --logits, got none; give the logits after them"
            )
        return None
    rows = read_logits(logits)
    pair = (read_ids("--prompt-ids", prompt_ids), read_ids("--output-ids", output_ids))
    return found.law_change(rows, history=[pair] * (rows.shape[0] if rows.ndim == 2 else 1))


def read_logits(path: Path) -> Any:
    """The array in a .npy file. Raises ParamsError for what is none, and for one that is larger than the memory."""
    import numpy as np

    try:
        with path.open("rb") as file:
            if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
                raise ParamsError(f"--logits must be a .npy file of one array, got {path}; write it with numpy.save")
            file.seek(0)
            return np.load(file, allow_pickle=False)
    except OSError as error:
        raise ParamsError(f"--logits must be a .npy file, got {path}: {error.strerror or error}") from None
    except ParamsError:
        raise
    except _BAD_ARRAYS as error:
        raise ParamsError(f"--logits must be a .npy file, got {path}: {error}") from None


def read_ids(option: str, text: str) -> list[int]:
    """The token ids in a list with commas. Raises ParamsError for anything else."""
    try:
        return [int(part) for part in text.split(",")] if text.strip() else []
    except ValueError:
        raise ParamsError(f"{option} must be token ids with commas between them, got {text[:60]!r}") from None
