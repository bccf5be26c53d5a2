"""`ChatSampler`: turns of a conversation, formatted and remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tirage.compat.gemma.gemma4 import Gemma4Sampler
from tirage.compat.gemma.images import is_gemma4
from tirage.compat.gemma.methods import Greedy, SamplingMethod
from tirage.compat.gemma.run import Turn
from tirage.compat.gemma.sampler import Sampler
from tirage.compat.gemma.state import SamplingState
from tirage.compat.gemma.tokenization import END_OF_TURN, START_OF_TURN
from tirage.errors import ModelError, ParamsError

_TURN = f"{START_OF_TURN}user\n{{}}{END_OF_TURN}\n{START_OF_TURN}model\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """How a message is to be answered.

    `multi_turn` continues the conversation, `stream` is where the reply is printed and `options` are those of the
    sampler. `tagged`: the model wrote the tag that tools' answers begin with, or is to find it after a call.
    """

    multi_turn: bool
    stream: Any
    options: dict[str, Any]
    tagged: bool = True

    def changed(self, *, multi_turn: bool | None = None, tagged: bool = True, **options: Any) -> ChatRequest:
        """The same request with other options."""
        multi_turn = self.multi_turn if multi_turn is None else multi_turn
        return replace(self, multi_turn=multi_turn, tagged=tagged, options={**self.options, **options})


@dataclass(kw_only=True, eq=False)
class ChatSampler:
    """A conversation with a model, as `gm.text.ChatSampler`.

    Takes what `Sampler` takes, and for a Gemma 4, found by the model's INFO, what `Gemma4Sampler` takes; other models
    ignore that. `multi_turn` keeps the conversation from call to call; without it each call begins a
    new one. `print_stream` prints the reply as it comes, or adds it to a `dialog.Stream`. `last_state` continues an
    earlier conversation. `turns` are the (prompt, reply) pairs of the conversation so far, without markers.
    """

    model: Any = field(repr=False)
    params: Any = field(default=None, repr=False)
    multi_turn: bool = False
    print_stream: Any = False
    tokenizer: Any = field(default=None, repr=False)
    sampling: SamplingMethod = field(default_factory=Greedy)
    forbidden_tokens: Sequence[str | int] | None = None
    stop_tokens: Sequence[str | int] | None = None
    cache_length: int = 4096
    max_out_length: int = 2048
    pad_length: int | Sequence[int] | None = (256, 512, 1024)
    patch_size: int = 16
    max_soft_tokens: int = 1120
    pooling_kernel_size: int = 3
    audio_sample_rate: int = 16000
    audio_seq_length: int = 750
    last_state: SamplingState | None = field(default=None, repr=False)
    turns: list[tuple[str, str]] = field(default_factory=list)
    _inner: Sampler = field(init=False, repr=False)
    _prompts: list[Any] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.turns:
            raise ParamsError("turns must be empty to begin with, the sampler keeps them; pass last_state to go on")
        kind = Gemma4Sampler if is_gemma4(self.model) else Sampler
        taken = [one.name for one in fields(kind) if one.init]
        self._inner = kind(**{name: getattr(self, name) for name in taken})
        self.tokenizer = self._inner.tokenizer
        if self._dialog() is None and len(self._inner._tokenizer.encode(START_OF_TURN)) != 1:
            raise ModelError(
                f"tokenizer must know Gemma's turns, {START_OF_TURN} as one token, got {type(self.tokenizer).__name__};"
                " tirage.LLM.chat uses a model's own chat template"
            )
        if self.last_state is not None:
            self.multi_turn = True

    @property
    def sampler(self) -> Sampler:
        """The sampler, for a model that is no Gemma 4."""
        if isinstance(self._inner, Gemma4Sampler):
            raise AttributeError("sampler is not there with a Gemma 4; use gemma4_sampler")
        return self._inner

    @property
    def gemma4_sampler(self) -> Gemma4Sampler:
        """The sampler, for a Gemma 4."""
        if not isinstance(self._inner, Gemma4Sampler):
            raise AttributeError("gemma4_sampler is only there with a Gemma 4; use sampler")
        return self._inner

    def chat(
        self,
        prompt: Any,
        *,
        images: Any = None,
        sampling: SamplingMethod | None = None,
        rng: Any = None,
        max_new_tokens: int | None = None,
        multi_turn: bool | None = None,
        print_stream: Any = None,
        sharding: Any = None,
        audio: Any = None,
        audio_lengths: Any = None,
    ) -> str:
        """The reply to a message: text, or a `dialog` Conversation; end-of-turn tokens are left out of it.

        `multi_turn` and `print_stream` override the sampler's own for this call; the other arguments are those of
        `Sampler.sample`, or `Gemma4Sampler.sample`. An image is `<|image|>` in the text, audio `<|audio|>`. A call that
        fails leaves the conversation as it was. ParamsError for audio with a model that is no Gemma 4.
        """
        for name, value in (("audio", audio), ("audio_lengths", audio_lengths)):
            if value is not None and not is_gemma4(self.model):
                raise ParamsError(f"{name} must be None with this model, which is no Gemma 4, got a value")
        options = {
            "images": images,
            "audio": audio,
            "audio_lengths": audio_lengths,
            "max_new_tokens": max_new_tokens,
            "sampling": sampling,
            "rng": rng,
            "sharding": sharding,
        }
        request = ChatRequest(
            multi_turn=self.multi_turn if multi_turn is None else multi_turn,
            stream=self.print_stream if print_stream is None else print_stream,
            options=options,
        )
        turn = self._answer(prompt, request)
        if request.stream is True:
            print()
        return turn.text

    def _answer(self, prompt: Any, request: ChatRequest) -> Turn:
        """The model's turn after a message; both are added to the conversation."""
        last = self.last_state if request.multi_turn else None
        message, text = self._format(prompt, tagged=request.tagged)
        run = self._inner.start(text, last_state=last, show_end=False, **request.options)
        (turn,) = run.turns
        for _ in run.steps():
            print_new_text(request.stream, turn.new_text)
        self.turns = [*(self.turns if request.multi_turn else ()), (message, turn.text)]
        self._prompts = [*(self._prompts if request.multi_turn else ()), prompt]
        self.last_state = run.state()
        return turn

    @property
    def conversation(self) -> Any:
        """The conversation as a `dialog.Conversation`; ModelError where that package is missing."""
        dialog = dialog_of()
        turns = zip(self._prompts, self.turns, strict=True)
        parts = [
            part
            for prompt, (message, reply) in turns
            for part in (dialog.User(message) if isinstance(prompt, str) else prompt, dialog.Model(reply))
        ]
        return dialog.Conversation(*parts)

    def _with_image_tokens(self, prompt: str) -> str:
        """A message in which `<|image|>` is the model's own image token, which had another name before Gemma 4."""
        is_newest = is_gemma4(self.model)
        if is_newest and "<start_of_image>" in prompt:
            raise ParamsError("prompt must name images <|image|> with a Gemma 4, got <start_of_image>")
        if not is_newest and "<|audio|>" in prompt:
            raise ParamsError("prompt must be without <|audio|> with this model, which is no Gemma 4")
        return prompt.replace("<|image|>", "<start_of_image>") if self._inner.takes_images else prompt

    def _format(self, prompt: Any, *, tagged: bool) -> tuple[str, str]:
        """A message as text, and the prompt made of it: in the tokenizer's format, or with Gemma's markers."""
        tokenizer = self._inner._tokenizer
        if hasattr(prompt, "as_text"):
            text = tokenizer.text(prompt, tagged=tagged)
            return text, text
        if not isinstance(prompt, str):
            raise ParamsError(f"prompt must be a text or a Conversation, got {type(prompt).__name__}")
        prompt = self._with_image_tokens(prompt)
        dialog = self._dialog()
        if dialog is None:
            return prompt, _TURN.format(prompt)
        return prompt, tokenizer.text(dialog.Conversation(dialog.User(prompt)))

    def _dialog(self) -> Any:
        """The `dialog` package if it is installed and the tokenizer names one of its formats, else None."""
        if getattr(self.tokenizer, "FORMAT", None) is None:
            return None
        try:
            return dialog_of()
        except ModelError:
            return None


def dialog_of() -> Any:
    """The `dialog` package; raises ModelError where it is missing."""
    try:
        import dialog  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ModelError("conversation needs the dialog package, see turns; pip install dialog") from error
    return dialog


def print_new_text(stream: Any, text: str) -> None:
    """Prints new text, or adds it to a `dialog.Stream`; False does neither. ParamsError for another stream."""
    if stream is False or stream is None or not text:
        return
    if stream is True:
        print(text, end="", flush=True)
    elif hasattr(stream, "add"):
        stream.add(text)
    else:
        raise ParamsError(f"print_stream must be True, False or a dialog.Stream, got {type(stream).__name__}")
