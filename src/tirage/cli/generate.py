"""`tirage generate`: the continuation of a text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tirage.cli.given import read_prompt
from tirage.cli.model import (
    AnyModelOption,
    ApiKeyOption,
    BackendOption,
    DeviceOption,
    DialectOption,
    DraftOption,
    DtypeOption,
    EngineArgOption,
    ModelNameOption,
    SpeculativeConfigOption,
    open_any,
)
from tirage.cli.options import OF_TEXTS, option_remedies, parse_options, sampling_options
from tirage.cli.output import QuietOption, TextOutput, note, print_json, print_rich, show, summary
from tirage.errors import ParamsError, nearest

if TYPE_CHECKING:
    from tirage.engine import Sample
    from tirage.llm import Completion

_FORMS = ("text", "jsonl")


@sampling_options(more=OF_TEXTS)
def generate(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="text to continue; - reads it from stdin")],
    model: AnyModelOption = "tiny",
    dialect: DialectOption = None,
    model_name: ModelNameOption = None,
    api_key: ApiKeyOption = None,
    backend: BackendOption = "auto",
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    engine_arg: EngineArgOption = None,
    draft: DraftOption = None,
    speculative_config: SpeculativeConfigOption = None,
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="FORM", help="text, or jsonl: an object per text", rich_help_panel="Output"
        ),
    ] = "text",
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Continue a text. Only the new text goes to stdout, while it is generated; `tirage batch` takes files of prompts.

    With --logprobs a table of the tokens follows on stderr, with --quiet too. The exit status is 1 where a text ends
    with an error.
    """
    check_form(output)
    params = parse_options(options)
    text = read_prompt(prompt)
    llm = open_any(
        model,
        dialect,
        api_key,
        model_name=model_name,
        backend=backend,
        dtype=dtype,
        device=device,
        engine_arg=engine_arg,
        draft=draft,
        speculative_config=speculative_config,
    )
    with option_remedies(options):
        deltas = llm.stream(text, params)
    if output == "jsonl":
        completion = [delta.completion for delta in deltas][-1]
        assert completion is not None
        print_samples(completion)
    else:
        completion = show(deltas)
        show_others(completion, quiet=quiet)
    if not quiet:
        note(summary(completion))
    if any(sample.finish_reason == "error" for sample in completion.samples):
        raise typer.Exit(1)


def check_form(output: str) -> None:
    """Raises ParamsError for a form of the output that there is not."""
    if output not in _FORMS:
        raise ParamsError(f"--output must be text or jsonl, got {output!r}{nearest(output, _FORMS)}")


def print_samples(completion: Completion) -> None:
    """Prints each sample as a line of JSON, in the form of `tirage batch`."""
    from tirage.cluster.worker import sample_fields

    for sample in completion.samples:
        print_json({"index": sample.index, **sample_fields(completion, sample)})


def show_others(completion: Completion, *, quiet: bool) -> None:
    """Writes the samples after the first, which is there already, and on stderr the log-probabilities of all."""
    several = len(completion.samples) > 1
    for number, sample in enumerate(completion.samples, 1):
        if number > 1:
            output = TextOutput()
            output.write(sample.text)
            output.end()
        if sample.logprobs is not None:
            print_rich(logprob_table(sample), stderr=True)
        if several and not quiet:
            note(f"^ {number} of {len(completion.samples)}, {sample.finish_reason}")


def logprob_table(sample: Sample) -> Any:
    """A table of the tokens of a sample: log-probability, probability, rank, and the likeliest tokens of the step."""
    from rich.table import Table
    from rich.text import Text

    from tirage.tracing.texts import visible

    table = Table("token", "logprob", "probability", "rank", "likeliest", box=None, pad_edge=False)
    for column in table.columns[1:4]:
        column.justify = "right"
    for entry in sample.logprobs or ():
        likeliest = "  ".join(f"{visible(each.bytes)} {probability(each.logprob)}" for each in entry.top)
        cells = (f"{entry.logprob:.3f}", probability(entry.logprob), str(entry.rank), Text(likeliest))
        table.add_row(Text(visible(entry.bytes)), *cells)
    return table


def probability(logprob: float) -> str:
    """The probability of a log-probability, in percent."""
    return f"{100 * math.exp(logprob):.1f} %"
