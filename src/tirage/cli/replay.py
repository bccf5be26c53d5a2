"""`tirage replay`: the tokens of a recorded answer, drawn once more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tirage.cli.given import check_left_out, stdin_for
from tirage.cli.model import BackendOption, DeviceOption, DtypeOption, EngineArgOption, open_model
from tirage.cli.output import QuietOption, note
from tirage.cli.replay_engine import (
    BatchTruncatesOption,
    CudaThreadsOption,
    EngineOption,
    LogitsOption,
    OutputIdsOption,
    PromptIdsOption,
    replay_request,
)
from tirage.cli.watermark import KEY_VARIABLE, key_for, read_key
from tirage.errors import ParamsError
from tirage.server.options import Options

if TYPE_CHECKING:
    from tirage.server.replay import Replayed
    from tirage.text import Tokenizer


MOST_BYTES = 1 << 30
"""The longest answer that is read."""


def replay(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="an answer with effective_params, as JSON or events; - is stdin")
    ],
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME|PATH", help="the model's folder; bundled ones are found")
    ] = None,
    logits_processor: Annotated[
        list[str] | None, typer.Option("--logits-processor", metavar="NAME=MODULE:OBJECT", help="a processor it names")
    ] = None,
    lora: Annotated[list[str] | None, typer.Option("--lora", metavar="NAME=PATH", help="an adapter it names")] = None,
    watermark_key: Annotated[
        str | None,
        typer.Option(
            "--watermark-key",
            metavar="KEY|@FILE",
            help=f"of a watermarked text, as records never hold it; by default that of the environment, {KEY_VARIABLE}",
        ),
    ] = None,
    backend: BackendOption = "auto",
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    engine_arg: EngineArgOption = None,
    engine: EngineOption = None,
    logits: LogitsOption = None,
    prompt_ids: PromptIdsOption = "",
    output_ids: OutputIdsOption = "",
    cuda_threads: CudaThreadsOption = None,
    batch_truncates: BatchTruncatesOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw the tokens of an answer again. Its texts go to stdout; the exit status is 1 when a token differs.

    Without --dtype the model runs in that of the answer, int8 included. With --engine and --logits [steps, V] it
    draws the tokens of a request to vLLM, SGLang, transformers or llama.cpp, without a model, and prints their ids.
    """
    of_models: dict[str, Any] = {"backend": backend, "dtype": dtype, "device": device, "engine_arg": engine_arg}
    of_engines: dict[str, Any] = {
        "prompt_ids": prompt_ids,
        "output_ids": output_ids,
        "cuda_threads": cuda_threads,
        "batch_truncates": batch_truncates,
    }
    if engine is not None or logits is not None:
        given = {"model": model, "logits_processor": logits_processor, "lora": lora, "watermark_key": watermark_key}
        unused = {**given, **of_models, "backend": None if backend == "auto" else backend}
        check_left_out("with --engine and --logits, which draw without a model", **unused)
        raise typer.Exit(replay_request(file, engine=engine, logits=logits, quiet=quiet, **of_engines))
    check_left_out("for an answer of ours, which holds what it takes; it goes with --engine and --logits", **of_engines)
    status = replay_answer(
        file,
        model,
        logits_processors=tuple(logits_processor or ()),
        lora=tuple(lora or ()),
        key=None if watermark_key is None else read_key(watermark_key),
        quiet=quiet,
        **of_models,
    )
    raise typer.Exit(status)


def replay_answer(
    file: Path,
    model: str | None,
    *,
    logits_processors: tuple[str, ...],
    lora: tuple[str, ...],
    key: Any,
    dtype: str | None,
    quiet: bool,
    backend: str,
    **opened: Any,
) -> int:
    """Prints the texts of an answer of ours, drawn again by a model `opened` so; 1 where a token differs, else 0."""
    from tirage.server.plugins import load_processors, read_adapters
    from tirage.server.replay import dtype_of, folder_named, read_records
    from tirage.server.replay import replay as run_again

    records = read_records(stdin_for("FILE -").buffer.read() if str(file) == "-" else read_answer(file))
    name = str(model or folder_named(records[0]["model"]["name"]))
    options = Options.of(model=name, logits_processor=logits_processors, lora=lora)
    load_processors(options)
    llm = open_model(
        name,
        backend=backend,
        dtype=dtype or (dtype_of(records[0]) if backend in ("auto", "torch", "vllm") else None),
        adapters=read_adapters(options) or None,
        max_running=options.limits.max_running,
        **opened,
    )
    differs = False
    for number, record in enumerate(records):
        done = run_again(llm, record, watermark_key=key_for(record) if key is None else key)
        for sample in done.completion.samples:
            print(sample.text)
        differs = differs or done.difference is not None
        if not quiet:
            note(f"{number}: {verdict(done, llm.tokenizer)}")
    return int(differs)


def read_answer(file: Path) -> bytes:
    """The content of the file or pipe. Raises ParamsError when it cannot be read, or has no end, as /dev/zero."""
    try:
        with file.open("rb") as opened:
            found = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise ParamsError(f"file must be readable, got {file}: {error.strerror}") from error
    if len(found) > MOST_BYTES:
        raise ParamsError(f"file must have at most {MOST_BYTES} bytes, got more in {file}; is it the right file?")
    return found


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
