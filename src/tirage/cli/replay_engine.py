"""`tirage replay --engine`: the tokens of another engine's request, drawn once more from its logits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tirage.cli.convert import read_ids, read_logits, read_request
from tirage.cli.output import note
from tirage.errors import ParamsError

if TYPE_CHECKING:
    from tirage.engine_replay import EngineReplay

EngineOption = Annotated[
    str | None,
    typer.Option("--engine", metavar="NAME", help="of another engine: vllm, sglang, ...; FILE is its request as JSON"),
]
LogitsOption = Annotated[
    Path | None, typer.Option("--logits", metavar="FILE", help="its logits [steps, V] as .npy, one row for each token")
]
PromptIdsOption = Annotated[
    str, typer.Option("--prompt-ids", metavar="IDS", help="the tokens of its prompt, such as 5,17")
]
OutputIdsOption = Annotated[
    str, typer.Option("--output-ids", metavar="IDS", help="the tokens that it drew, to compare with")
]
CudaThreadsOption = Annotated[
    int | None, typer.Option("--cuda-threads", metavar="N", help="on CUDA: multiprocessors times threads of each")
]
BatchTruncatesOption = Annotated[
    bool, typer.Option("--batch-truncates", help="of SGLang: another row of the batch had top_k or top_p")
]


def replay_request(
    request: Path,
    *,
    engine: str | None,
    logits: Path | None,
    prompt_ids: str,
    output_ids: str,
    cuda_threads: int | None,
    batch_truncates: bool,
    quiet: bool,
) -> int:
    """Prints the tokens that an engine draws from logits [T, V], as JSON; 1 where a recorded one differs, else 0.

    Raises ParamsError for what cannot be replayed or read.
    """
    from tirage.dialects import DIALECTS
    from tirage.engine_replay import REPLAYED_ENGINES, replay_engine
    from tirage.engine_replay.engines import engine_named

    if engine is None:
        raise ParamsError(f"--engine must be given with --logits, got none; one of {', '.join(REPLAYED_ENGINES)}")
    dialect = engine_named(engine).dialect
    if logits is None:
        raise ParamsError("--logits must be given with --engine, got none; the logits of each step as .npy, [steps, V]")
    recorded = read_ids("--output-ids", output_ids) or None
    found = replay_engine(
        read_logits(logits),
        DIALECTS[dialect].read(read_request(request)),
        engine=engine,
        prompt_ids=read_ids("--prompt-ids", prompt_ids),
        output_ids=recorded,
        cuda_threads=cuda_threads,
        batch_truncates=batch_truncates,
    )
    print(json.dumps(found.token_ids.tolist()), flush=True)
    if not quiet:
        note(verdict(found, recorded))
        if unverified := engine_named(engine).unverified:
            note(f"{engine} is not verified: {unverified}")
    return int(found.difference is not None)


def verdict(found: EngineReplay, recorded: Sequence[int] | None) -> str:
    """A line about the tokens: which of them differ or may differ."""
    doubtful = [str(step) for step, certain in enumerate(found.certain.tolist()) if not certain]
    count = len(found.token_ids)
    sure = f"all {count} tokens are certain"
    if doubtful:
        sure = f"{len(doubtful)} of {count} tokens hang on {found.engine}'s rounding: step {', '.join(doubtful[:20])}"
    if recorded is None:
        return f"{found.engine}: {sure}"
    if found.difference is None:
        return f"{found.engine}: the same {count} tokens; {sure}"
    step = found.difference
    return (
        f"{found.engine}: differs first at step {step}: the engine's token is {recorded[step]}, this one "
        f"{found.token_ids[step]}; {sure}"
    )
