"""`tirage detect`: whether a text carries a watermark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tirage.cli.given import read_file, stdin_for
from tirage.cli.output import QuietOption, note
from tirage.cli.watermark import KEY_VARIABLE, read_key
from tirage.errors import ParamsError

if TYPE_CHECKING:
    from tirage.watermarks.detection import Detection

_OPTIONS: dict[str, Any] = {"rich_help_panel": "Options of the scheme, as they were when the text was written"}


def detect(
    file: Annotated[
        Path, typer.Argument(metavar="TEXT_FILE", help="a text, without its prompt; - reads it from stdin")
    ],
    scheme: Annotated[str, typer.Option("--scheme", metavar="NAME", help="gumbel, kgw or synthid")],
    key: Annotated[
        str,
        typer.Option(
            "--key",
            metavar="KEY|@FILE",
            envvar=KEY_VARIABLE,
            help="an integer, for synthid several with commas; @FILE reads it from a file",
        ),
    ],
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME|PATH", help="the folder or GGUF file of the text's model")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", metavar="PATH", help="its tokenizer.json, instead of --model")
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option("--vocab-size", metavar="INTEGER", help="columns of its logits, with --tokenizer")
    ] = None,
    token_ids: Annotated[bool, typer.Option("--token-ids", help="the file is a JSON list of token ids")] = False,
    fingerprint: Annotated[
        str | None, typer.Option("--fingerprint", metavar="DIGEST", help="of the tokenizer that wrote the text")
    ] = None,
    threshold: Annotated[
        float, typer.Option("--threshold", metavar="NUMBER", help="the largest p-value of a detection")
    ] = 0.01,
    options: Annotated[
        str | None,
        typer.Option("--options", metavar="JSON", help='those of Watermark, such as {"context_width": 2}', **_OPTIONS),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print what was found as one JSON object")] = False,
    quiet: QuietOption = False,
) -> None:
    """Print the p-value of a text: how often one without this watermark scores as high.

    The exit status is 0 when it is at most --threshold, and 1 when no watermark was found.
    """
    from tirage.watermarks import Watermark
    from tirage.watermarks.detection import detect as find

    check_threshold(threshold)
    keys: Any = read_key(key)
    if scheme == "synthid" and isinstance(keys, int):
        keys = [keys]
    watermark = Watermark.from_dict({**read_options(options), "scheme": scheme, "key": keys})
    text = read_text(file, token_ids=token_ids)
    if model is None and tokenizer is None:
        check_known({"TEXT_FILE of text": not token_ids, "--fingerprint": fingerprint is not None})
    if model is None and vocab_size is None:
        check_needs_no_size(scheme)
    words, size = read_vocabulary(model, tokenizer, vocab_size)
    found = find(text, watermark, tokenizer=words, vocab_size=size, fingerprint=fingerprint)
    print(json.dumps(found.to_dict()) if as_json else f"{found.p_value:.3g}")
    if not quiet and not as_json:
        note(sentence(found, threshold))
    raise typer.Exit(0 if found.p_value <= threshold else 1)


def check_threshold(threshold: float) -> None:
    """Raises ParamsError for what is no p-value between 0 and 1."""
    if not 0 < threshold < 1:
        raise ParamsError(f"--threshold must be in (0, 1), got {threshold}")


def check_known(given: Mapping[str, bool]) -> None:
    """Raises ParamsError where something is given that a tokenizer is needed for, and there is none."""
    for name in (name for name, is_given in given.items() if is_given):
        raise ParamsError(f"{name} must come with --model or --tokenizer, got neither; or give ids with --token-ids")


def check_needs_no_size(scheme: str) -> None:
    """Raises ParamsError for a scheme that depends on the size of the vocabulary."""
    if scheme == "kgw":
        raise ParamsError("--vocab-size must be given for kgw, or --model, got neither")


def sentence(found: Detection, threshold: float) -> str:
    """What a detection says, in words."""
    verdict = "a watermark with this key" if found.p_value <= threshold else "no watermark with this key was found"
    return (
        f"{verdict}: {found.scored} of {found.token_count} tokens scored {found.score:.6g}, "
        f"{found.expected:.6g} expected without"
    )


def read_options(text: str | None) -> dict[str, Any]:
    """The options of a scheme in JSON text. Raises ParamsError for anything but an object."""
    try:
        found = {} if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParamsError(f"--options must be a JSON object, got text that is not JSON ({error})") from None
    if not isinstance(found, dict) or {"scheme", "key"} & set(found):
        raise ParamsError("--options must be a JSON object without scheme and key, which have options of their own")
    return found


def read_vocabulary(model: str | None, tokenizer: Path | None, vocab_size: int | None) -> tuple[Any, int | None]:
    """The tokenizer and the size of the vocabulary, None where neither is given. Raises ParamsError for both ways."""
    if model is None:
        return (None if tokenizer is None else tokenizer_of(tokenizer)), vocab_size
    if tokenizer is not None:
        raise ParamsError("--tokenizer must be left out with --model, which has its own")
    from tirage.cli.model import open_model

    llm = open_model(model)
    return llm.tokenizer, llm.model.vocab_size if vocab_size is None else vocab_size


def tokenizer_of(path: Path) -> Any:
    """The tokenizer in a file. Raises ParamsError where there is none."""
    from tirage.text.tokenizer import load_tokenizer

    try:
        return load_tokenizer(path)
    except OSError as error:
        raise ParamsError(f"--tokenizer must be a tokenizer.json, got {path}: {error.strerror}") from None


def read_text(file: Path, *, token_ids: bool) -> str | list[int]:
    """The text in a file, or the ids. Raises ParamsError when it cannot be read."""
    source = stdin_for("TEXT_FILE -") if str(file) == "-" else None
    try:
        text = read_file(file) if source is None else source.read()
        return json.loads(text) if token_ids else text
    except OSError as error:
        raise ParamsError(f"TEXT_FILE must be readable, got {file}: {error.strerror}") from None
    except ParamsError:
        raise
    except (ValueError, RecursionError):
        kind = "a JSON list of token ids" if token_ids else "text in UTF-8"
        raise ParamsError(f"TEXT_FILE must be {kind}, got {file}, which is not") from None
