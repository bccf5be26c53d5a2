"""The `tirage` command: text on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tirage import cli_guided
from tirage.errors import GrammarError, ParamsError, TirageError, nearest
from tirage.params import FIELDS, FieldSpec, RequestOutputKind, SamplingParams
from tirage.params.rules import Bias, Bool, Float, Ids, IdWords, Int, Texts
from tirage.server.options import FLAGS, Flag, Options, from_environment

if TYPE_CHECKING:
    from tirage.llm import LLM, Completion, Delta
    from tirage.server.replay import Replayed
    from tirage.text import Tokenizer

# Fields that need more than a value on a command line, or that change what is printed. A constraint has options of its
# own, in `cli_guided`.
NO_OPTION = {
    "n", "best_of", "logprobs", "prompt_logprobs", "logprob_token_ids", "logprobs_mode", "detokenize",
    "output_kind", "guided_decoding", "extra_args", "logits_processors",
}  # fmt: skip
_MAX_TOKENS = 128
OPTIONS = {name: spec for name, spec in FIELDS.items() if spec.public and name not in NO_OPTION}

COMMANDS = {
    "/set": "/set NAME VALUE   change a parameter, such as /set temperature 0.7",
    "/seed": "/seed N           make the replies repeatable; /seed none for fresh ones",
    "/explain": "/explain          how the first token of the last reply was drawn",
    "/reset": "/reset            forget the conversation",
    "/help": "/help             this list",
    "/quit": "/quit             end the chat",
}
"""What a chat understands besides messages, each with its line of help."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="From logits to drawn tokens to text: exact, reproducible, explained sampling.",
)
ModelOption = Annotated[str, typer.Option("--model", help="a bundled model or a local Hugging Face folder")]
BackendOption = Annotated[str, typer.Option("--backend", help="auto, torch or numpy")]
DtypeOption = Annotated[
    str | None, typer.Option("--dtype", help="on PyTorch: auto, float32, bfloat16, float16, or int8 on a CPU")
]
DeviceOption = Annotated[str | None, typer.Option("--device", help="on PyTorch: cpu, cuda, cuda:1, ...")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="no notes on stderr")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits: 0 done, 1 a model that cannot be used, 2 a bad option, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character should not end the text.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        app(args=list(arguments) if arguments is not None else None)
    except TirageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, (ParamsError, GrammarError)) else 1)
    except OSError as error:
        print(f"error: {error.filename or 'the output'}: {error.strerror}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for every parameter in `OPTIONS` and every kind of constraint, for `**options`."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters = [*own, *(option(name, spec) for name, spec in OPTIONS.items()), *cli_guided.options()]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def option(name: str, spec: FieldSpec) -> inspect.Parameter:
    """The command-line option of a field; its value stays text until `parse_options`."""
    flag = f"--{name.replace('_', '-')}"
    default = _MAX_TOKENS if name == "max_tokens" else spec.default
    shown = "" if default in (None, ()) else f" (default {default})"
    kind: Any = str
    if isinstance(spec.rule, Bool):
        flag, kind = f"{flag}/--no-{flag[2:]}", bool
    elif isinstance(spec.rule, (Texts, Ids)):
        kind, shown = list[str], "; may be repeated"
    info = typer.Option(flag, help=spec.meaning + shown, show_default=False, metavar=metavar(spec))
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info]
    )


def metavar(spec: FieldSpec) -> str | None:
    """What the help calls a value of the field."""
    names: dict[type, str | None] = {
        Bool: None,
        Int: "INTEGER",
        Ids: "INTEGER",
        Float: "NUMBER",
        Bias: "JSON",
        IdWords: "JSON",
    }
    return names.get(type(spec.rule), "TEXT")


def parse_options(options: dict[str, Any]) -> SamplingParams:
    """The parameters that the given options ask for; ParamsError, worded by the field, for a bad value."""
    given = {name: parse(FIELDS[name], options[name]) for name in OPTIONS if options.get(name) is not None}
    given.setdefault("max_tokens", _MAX_TOKENS)
    guided = cli_guided.parse_guided({name: options.get(name) for name in cli_guided.OPTIONS})
    return SamplingParams(**given, guided_decoding=guided, output_kind=RequestOutputKind.DELTA)


def parse(spec: FieldSpec, value: Any) -> Any:
    """An option's text as the field's own type; text that is none of it is left for the field to refuse."""
    if isinstance(value, list):
        return [number(item, int) for item in value] if isinstance(spec.rule, Ids) else value
    if isinstance(value, bool) or not isinstance(value, str):
        return value
    if isinstance(spec.rule, (Int, Float)):
        if value.lower() == "none":
            return None
        return number(value, int if isinstance(spec.rule, Int) else float)
    if isinstance(spec.rule, (Bias, IdWords)):
        with contextlib.suppress(ValueError, RecursionError):
            return spec.load(json.loads(value))
    return value


def number(text: str, kind: type[int] | type[float]) -> Any:
    """The number that a text spells, or the text."""
    try:
        return kind(text)
    except ValueError:
        return text


@app.command()
@sampling_options
def generate(
    prompt: Annotated[str, typer.Argument(help="text to continue; - reads it from stdin")],
    model: ModelOption = "tiny",
    backend: BackendOption = "auto",
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Continue a text. The new text alone goes to stdout, as it is drawn."""
    params = parse_options(options)
    llm = open_model(model, backend=backend, dtype=dtype, device=device)
    text = sys.stdin.read() if prompt == "-" else prompt
    completion = show(llm.stream(text, params))
    if not quiet:
        note(summary(completion))
    if completion.finish_reason == "error":
        raise typer.Exit(1)


@app.command()
@sampling_options
def chat(
    model: ModelOption = "tiny",
    backend: BackendOption = "auto",
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    system: Annotated[str | None, typer.Option(help="a system message to begin with")] = None,
    chat_template: Annotated[Path | None, typer.Option(help="Jinja file instead of the model's template")] = None,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Talk with a model. /help lists the commands; Ctrl-C stops a reply, Ctrl-D ends the chat."""
    params = parse_options(options)
    llm = open_model(model, chat_template=chat_template, backend=backend, dtype=dtype, device=device)
    conversation = Conversation(llm, params, system=system, quiet=quiet)
    while conversation.turn():
        pass


@app.command()
@sampling_options
def explain(
    prompt: Annotated[str, typer.Argument(help="text whose next token is drawn; - reads it from stdin")],
    model: ModelOption = "tiny",
    backend: BackendOption = "auto",
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    position: Annotated[int, typer.Option(help="token of the prompt after which the draw is explained")] = -1,
    html: Annotated[Path | None, typer.Option(help="write a page to this file instead")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
    **options: Any,
) -> None:
    """Show every stage of one draw: what each parameter removed, and what was left to draw from."""
    params = parse_options(options)
    text = sys.stdin.read() if prompt == "-" else prompt
    explanation = open_model(model, backend=backend, dtype=dtype, device=device).explain(
        text, params, position=position
    )
    if html is not None:
        html.write_text(explanation.to_html(), encoding="utf-8")
        note(f"wrote {html}")
    elif as_json:
        print(json.dumps(explanation.to_dict(), ensure_ascii=False))
    else:
        print_rich(explanation)


@app.command()
def models() -> None:
    """List the models that come with tirage."""
    from tirage.models import bundled

    for name, description in bundled().items():
        print(f"{name}\t{description}")


def serve_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for every setting of a server, in place of its `**options`."""
    parameters = [setting(flag) for flag in FLAGS.values()]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def setting(flag: Flag) -> inspect.Parameter:
    """The command-line option of a server's setting."""
    kind: Any = list[str] if flag.many else flag.kind
    shown = "" if flag.default in (None, (), False) else f" (default {flag.default})"
    words = f"; one of {', '.join(flag.choices)}" if flag.choices else ""
    info = typer.Option(*flag.flags, help=flag.help + words + shown, show_default=False, metavar=flag.metavar)
    return inspect.Parameter(
        flag.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info]
    )


@app.command()
@serve_options
def serve(**options: Any) -> None:
    """Serve SGLang's, OpenAI's and FastDeploy's routes over HTTP. Progress and notes go to stderr."""
    from tirage.server import run

    given = {name: value for name, value in options.items() if value is not None}
    raise typer.Exit(run(Options.of(**from_environment(os.environ) | given)))


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="an answer with effective_params, as JSON; - reads it from stdin")],
    model: Annotated[str | None, typer.Option("--model", help="the model's folder; bundled ones are found")] = None,
    logits_processor: Annotated[
        list[str] | None, typer.Option("--logits-processor", metavar="NAME=MODULE:OBJECT", help="a processor it names")
    ] = None,
    lora: Annotated[list[str] | None, typer.Option("--lora", metavar="NAME=PATH", help="an adapter it names")] = None,
    quiet: QuietOption = False,
) -> None:
    """Draw the tokens of an answer again. Its texts go to stdout; exit status 1 says that some token differs."""
    from tirage.server.plugins import load_processors, read_adapters
    from tirage.server.replay import folder_named, read_records
    from tirage.server.replay import replay as run_again

    records = read_records(sys.stdin.buffer.read() if str(file) == "-" else read_answer(file))
    name = str(model or folder_named(records[0]["model"]["name"]))
    options = Options.of(model=name, logits_processor=tuple(logits_processor or ()), lora=tuple(lora or ()))
    load_processors(options)
    llm = open_model(name, adapters=read_adapters(options) or None, max_running=options.limits.max_running)
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
    try:
        return file.read_bytes()
    except OSError as error:
        raise ParamsError(f"file must be readable, got {file}: {error.strerror}") from error


def verdict(done: Replayed, tokenizer: Tokenizer) -> str:
    """One line on a replay: whether the tokens are the same, or which differs first."""
    kind = "the same model" if done.same_model else "another model"
    if done.difference is None:
        count = sum(len(sample.token_ids) for sample in done.completion.samples)
        return f"the same {count} tokens on {kind}"
    was, now = (
        "the end" if i is None else f"{i} {tokenizer.decode([i])!r}" for i in (done.difference.was, done.difference.now)
    )
    place = f"sample {done.difference.sample}, token {done.difference.position}"
    also = "".join(f"; {name} was {before!r:.60}, is {after!r}" for name, before, after in done.changed)
    return f"{kind} differs first at {place}: it was {was} and is now {now}{also}"


class Conversation:
    """A chat on the terminal: its messages, its parameters, and the last reply."""

    def __init__(self, llm: LLM, params: SamplingParams, *, system: str | None, quiet: bool) -> None:
        self._llm, self._params, self._quiet = llm, params, quiet
        self._start = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._start)
        self._last: Completion | None = None
        if llm.chat_template.is_plain and not quiet:
            note("the model has no chat template; using plain `role: content` lines")
        if sys.stdin.isatty():
            edit_lines()

    def turn(self) -> bool:
        """One line of input and its answer; False at the end of the chat. An interrupt ends the turn, not the chat."""
        try:
            return self._turn()
        except EOFError:
            return False
        except KeyboardInterrupt:
            note("")
            return True

    def _turn(self) -> bool:
        line = input("> " if sys.stdin.isatty() else "").strip()
        if line.startswith("/"):
            return self._command(line)
        if line:
            self._reply(line)
        return True

    def _reply(self, line: str) -> None:
        asked = [*self._messages, {"role": "user", "content": line}]
        parts = Parts()
        try:
            completion = show(parts.follow(self._llm.chat_stream(asked, self._params)))
        except (ParamsError, GrammarError) as error:
            note(f"error: {error}")
            return
        except KeyboardInterrupt:
            print()
            self._messages = [*asked, {"role": "assistant", "content": parts.text}]
            return
        self._last = completion
        self._messages = [*asked, {"role": "assistant", "content": completion.text}]
        if not self._quiet:
            note(summary(completion))

    def _command(self, line: str) -> bool:
        name, _, rest = line.partition(" ")
        if name == "/quit":
            return False
        if name not in COMMANDS:
            note(f"error: {name} is no command{nearest(name, COMMANDS)}; /help lists them")
            return True
        actions: dict[str, Callable[[str], None]] = {
            "/set": self._set,
            "/seed": lambda text: self._set(f"seed {text}"),
            "/reset": self._reset,
            "/explain": self._explain,
            "/help": show_help,
        }
        try:
            actions[name](rest.strip())
        except ParamsError as error:
            note(f"error: {error}")
        return True

    def _set(self, text: str) -> None:
        name, _, value = text.replace("=", " ", 1).partition(" ")
        name = name.replace("-", "_")
        if name not in OPTIONS:
            raise ParamsError(f"parameter must be a known name, got {name!r}{nearest(name, OPTIONS)}")
        spec = OPTIONS[name]
        words: Any = value.strip()
        if isinstance(spec.rule, Bool):
            words = {"true": True, "false": False}.get(words.lower(), words)
        elif isinstance(spec.rule, (Texts, Ids)):
            words = words.split()
        self._params = self._params.replace(**{name: parse(spec, words)})
        note(f"{name} = {getattr(self._params, name)!r}")

    def _reset(self, _: str) -> None:
        self._messages, self._last = list(self._start), None
        note("the conversation starts anew")

    def _explain(self, _: str) -> None:
        if self._last is None:
            raise ParamsError("explain must follow a reply, got none yet")
        from tirage.llm import Prompt

        prompt = Prompt(token_ids=self._last.prompt_token_ids)
        note("the first token of the last reply:")
        print_rich(self._llm.explain(prompt, self._params.replace(seed=self._last.seed)))


class Parts:
    """The text of a reply so far, for one that is stopped halfway."""

    def __init__(self) -> None:
        self.text = ""

    def follow(self, deltas: Iterator[Delta]) -> Iterator[Delta]:
        """The deltas, passed on with their text kept."""
        for delta in deltas:
            self.text += delta.text
            yield delta


def edit_lines() -> None:
    """Gives `input` a history for the arrow keys, and Tab to complete commands and the names of parameters."""
    try:
        import readline
    except ImportError:  # some systems come without it, and then lines are plain
        return
    readline.set_completer(complete)
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")


def complete(begun: str, index: int) -> str | None:
    """The `index`-th completion of a word, as readline asks for them one by one; None after the last."""
    words = [f"{word} " for word in (*COMMANDS, *OPTIONS) if word.startswith(begun)]
    return words[index] if index < len(words) else None


def show_help(_: str) -> None:
    note("\n".join(COMMANDS.values()))


def open_model(model: str, **options: Any) -> LLM:
    # Imported late, so that `tirage --help` answers at once.
    from tirage.llm import LLM

    return LLM(model, **options)


def show(deltas: Iterator[Delta]) -> Completion:
    """Writes a stream to stdout as it comes; returns the completion of its last delta."""
    completion: Completion | None = None
    for delta in deltas:
        sys.stdout.write(delta.text)
        sys.stdout.flush()
        completion = delta.completion
    sys.stdout.write("\n")
    sys.stdout.flush()
    if completion is None:
        raise TirageError("the stream ended without a completion")
    return completion


def summary(completion: Completion) -> str:
    """One line on a finished text: what repeats it, how long it is, why it ended, and if it breaks its constraint."""
    tokens, seconds = completion.usage.completion_tokens, completion.timings.total_s
    stop = completion.stop
    kind = "unknown" if stop is None else stop.kind
    if completion.finish_reason == "error" and stop is not None and stop.matched_text:
        kind = f"{kind}: {stop.matched_text}"
    broken = " | the text does not satisfy its constraint" if completion.grammar_complete is False else ""
    return f"seed {completion.seed} | {tokens} tokens in {seconds:.2f} s | {completion.finish_reason}: {kind}{broken}"


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def print_rich(value: Any) -> None:
    from rich.console import Console

    Console().print(value)
