"""`ToolSampler`: a conversation in which the model calls tools."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from tirage.compat.gemma.chat import ChatRequest, ChatSampler, dialog_of, print_new_text
from tirage.compat.gemma.keys import Source, sources_of
from tirage.compat.gemma.run import Turn
from tirage.compat.gemma.state import without_last
from tirage.errors import ModelError, ParamsError


@dataclass(kw_only=True, eq=False)
class ToolSampler(ChatSampler):
    """A conversation with a model that may call tools, as `gm.text.ToolSampler`.

    Takes what `ChatSampler` takes. `tool_handler` is a `gm.tools.ToolHandlerBase` or any object with its
    `add_system_prompt(conversation)`, which tells the model of its tools, and `maybe_execute_tool(reply)`, which gives
    the tools' answers or None; one that is a context manager is entered for each chat. Needs the `dialog` package.
    """

    tool_handler: Any = field(repr=False)

    def __post_init__(self) -> None:
        missing = [name for name in ("add_system_prompt", "maybe_execute_tool") if not hasattr(self.tool_handler, name)]
        if missing:
            raise ParamsError(f"tool_handler must have {missing[0]}, got {type(self.tool_handler).__name__}")
        super().__post_init__()
        if self._dialog() is None:
            raise ModelError(
                "ToolSampler needs the dialog package and a tokenizer that names a FORMAT; pip install dialog"
            )

    def _answer(self, prompt: Any, request: ChatRequest) -> Turn:
        """The model's turn after its last tool call; a call that fails leaves the conversation as it was."""
        before = self.turns, self.last_state, self._prompts
        dialog = dialog_of()
        try:
            with self.tool_handler if hasattr(self.tool_handler, "__enter__") else nullcontext():
                if isinstance(prompt, str):
                    prompt = dialog.Conversation(dialog.User(self._with_image_tokens(prompt)))
                if not self.turns or not request.multi_turn:
                    prompt = self.tool_handler.add_system_prompt(prompt)
                return self._rounds(prompt, request, dialog)
        except BaseException:
            self.turns, self.last_state, self._prompts = before
            raise

    def _rounds(self, prompt: Any, request: ChatRequest, dialog: Any) -> Turn:
        seed = sources_of(request.options["rng"], 1)[0].seed
        turn = super()._answer(prompt, request.changed(rng=Source(seed)))
        calls, no_media = 0, {"images": None, "audio": None, "audio_lengths": None}
        while answers := self.tool_handler.maybe_execute_tool(self._raw(turn)):
            calls += 1
            tagged = self._raw(turn).endswith(dialog.Tags.TOOL_RESPONSE.open)
            self._forget_end(turn, tagged)
            answer = dialog.Conversation(dialog.Model(answers))
            print_new_text(request.stream, answer.as_text(add_tool_response_tag_after_call=tagged))
            # Each round has random numbers of its own.
            next_request = request.changed(multi_turn=True, tagged=tagged, rng=Source(seed, calls), **no_media)
            turn = super()._answer(answer, next_request)
        return turn

    def _forget_end(self, turn: Turn, tagged: bool) -> None:
        """Removes an EOS from the end of the conversation, where the tools' answers are to begin."""
        eos = getattr(self.tokenizer.special_tokens, "EOS", None)
        if not tagged and self.last_state is not None and turn.output_ids[-1:] == [eos]:
            self.last_state = without_last(self.last_state)

    def _raw(self, turn: Turn) -> str:
        """The text of a turn with its end token, as the tokenizer writes it."""
        return self.tokenizer.decode(turn.output_ids)
