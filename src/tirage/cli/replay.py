"""`tirage replay`: the tokens of a recorded answer, drawn once more."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tirage.cli.model import BackendOption, DeviceOption, DtypeOption, EngineArgOption, open_model
from tirage.cli.output import QuietOption, note
from tirage.errors import ParamsError
from tirage.server.options import Options

if TYPE_CHECKING:
    from tirage.server.replay import Replayed
    from tirage.text import Tokenizer


def replay(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="an answer with effective_params, as JSON; - reads it from stdin")
    ],
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME|PATH", help="the model's folder; bundled ones are found")
    ] = None,
    logits_processor: Annotated[
        list[str] | None, typer.Option("--logits-processor", metavar="NAME=MODULE:OBJECT", help="a processor it names")
    ] = None,
    lora: Annotated[list[str] | None, typer.Option("--lora", metavar="NAME=PATH", help="an adapter it names")] = None,
    backend: BackendOption = "auto",
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    engine_arg: EngineArgOption = None,
    quiet: QuietOption = False,
) -> None:
    """Draw the tokens of an answer again. Its texts go to stdout; the exit status is 1 when a token differs.

    Without --dtype the model runs in that of the answer, int8 included.
    """
    from tirage.server.plugins import load_processors, read_adapters
    from tirage.server.replay import dtype_of, folder_named, read_records
    from tirage.server.replay import replay as run_again

    records = read_records(sys.stdin.buffer.read() if str(file) == "-" else read_answer(file))
    name = str(model or folder_named(records[0]["model"]["name"]))
    options = Options.of(model=name, logits_processor=tuple(logits_processor or ()), lora=tuple(lora or ()))
    load_processors(options)
    llm = open_model(
        name,
        backend=backend,
        dtype=dtype or (dtype_of(records[0]) if backend in ("auto", "torch", "vllm") else None),
        device=device,
        engine_arg=engine_arg,
        adapters=read_adapters(options) or None,
        max_running=options.limits.max_running,
    )
    differs = False
    for number, record in enumerate(records):
        done = run_again(llm, record)
        for sample in done.completion.samples:
            print(sample.text)
        differs = differs or done.difference is not None
        if not quiet:
            note(f"{number}: {verdict(done, llm.tokenizer)}")
    raise typer.Exit(1 if differs else 0)


def read_answer(file: Path) -> bytes:
    """The content of the file. Raises ParamsError when it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise ParamsError(f"file must be readable, got {file}: {error.strerror}") from error


def verdict(done: Replayed, tokenizer: Tokenizer) -> str:
    """A line about a replay: that all tokens are the same, or which one differs first."""
    kind = "the same model" if done.same_model else "another model"
    if done.difference is None:
        count = sum(len(sample.token_ids) for sample in done.completion.samples)
        return f"the same {count} tokens on {kind}"
    was, now = (
        "the end" if i is None else f"{i} {tokenizer.decode([i])!r}" for i in (done.difference.was, done.difference.now)
    )
    where = f"sample {done.difference.sample}, token {done.difference.position}"
    also = "".join(f"; {name} was {before!r:.60}, is {after!r}" for name, before, after in done.changed)
    return f"{kind} differs first at {where}: it was {was} and is now {now}{also}"
