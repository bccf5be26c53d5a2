"""`RemoteLLM`: what `tirage.LLM` is for the address of a server."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tirage.engine import (
    AnyPrompt,
    Completion,
    Delta,
    SchedulerConfig,
    check_constraint_options,
    is_one_prompt,
    listed_prompts,
)
from tirage.errors import ModelError, ParamsError, RemoteError, TirageError, nearest
from tirage.llm import LLM, Message, one_per_prompt
from tirage.params import SamplingParams, takes_params
from tirage.remote.answer import RemoteAnswer, fresh_seed
from tirage.remote.connection import ConnectionOptions, RemoteServer
from tirage.remote.event_loop import EventLoopThread, all_or_first_failure
from tirage.remote.formats import FORMATS
from tirage.remote.inside_vllm import inside_fields
from tirage.remote.request import RemoteRequest, checked_messages, prompt_parts
from tirage.remote.routes import OURS, REMOTE_DIALECTS, RemoteRoute, engine_defaults, fields_of
from tirage.remote.values import member, members, message_of, typed

_NOT_FOUND = 404
_OWNERS = {owner: name for name, each in REMOTE_DIALECTS.items() for owner in each.owners}


class NotRemoteError(TirageError, AttributeError):
    """A part of `LLM` that needs the model itself, and a server does not give."""


class RemoteLLM:
    """A model behind the server at `url`, asked through `generate`, `stream`, `astream`, `chat` and `chat_stream`.

    `dialect` says whose requests the server reads: "vllm", "sglang", "openai", "llamacpp" or "tirage". With
    `sampler="tirage"` a vLLM server that has tirage installed draws with it, else the server draws by its own rules.
    `model_name` is the model's name there, by default the only one in `/v1/models`. `api_key` is sent as a bearer
    token. At most `max_running` requests of `generate` run at once. An answer, and each event of a stream, may take
    `timeout_s` seconds; a request whose answer has not begun is sent again up to `retries` times.

    Nothing is sent before the first request. What a server has no field for is refused by name before that. Raises
    ParamsError for wrong options and ModelError where httpx is missing.
    """

    def __init__(
        self,
        url: str,
        *,
        dialect: str | None = None,
        sampler: str = "engine",
        model_name: str | None = None,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        retries: int = 3,
        max_running: int = 32,
        **others: Any,
    ) -> None:
        for name in others:
            raise ParamsError(f"{name} must be left out for the address of a server, which has the model")
        if dialect is None or dialect not in REMOTE_DIALECTS:
            known = ", ".join(REMOTE_DIALECTS)
            hint = nearest(str(dialect), REMOTE_DIALECTS)
            raise ParamsError(f"dialect must be one of {known} for the address of a server, got {dialect!r:.60}{hint}")
        SchedulerConfig(max_running=max_running)  # refuses a wrong one
        check_sampler(sampler, dialect)
        if importlib.util.find_spec("httpx") is None:
            raise ModelError("the address of a server needs httpx, which is missing: pip install 'tirage[remote]'")
        options = ConnectionOptions(url=url, api_key=api_key, timeout_s=timeout_s, retries=retries)
        self.dialect, self.sampler, self.max_running = REMOTE_DIALECTS[dialect], sampler, max_running
        self._server, self._threads = RemoteServer(options), EventLoopThread()
        self._name, self._owner = model_name, None
        self._running, self._looking = asyncio.Semaphore(max_running), asyncio.Lock()

    @takes_params
    def generate(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
        return_hidden_states: bool = False,
    ) -> list[Completion]:
        """One Completion per prompt, in prompt order; a prompt is a text, ids [T] or a `Prompt` of either.

        Without `params` the server's own sampling defaults apply, to at most 16 tokens. A request without a seed gets a
        fresh one, which its completion reports. `progress` shows a bar on a terminal's stderr. When one request fails,
        the others are aborted. Raises ParamsError for what the server cannot be asked for, before anything is sent, and
        for what it refuses; RemoteError for a server that fails; ModelError for one that speaks another dialect.
        """
        if return_hidden_states:
            raise ParamsError("return_hidden_states must be False for a server, which does not report them")
        listed = listed_prompts(prompts)
        each = one_per_prompt(params, len(listed))
        requests = [self._prompt(*pair, stream=False) for pair in zip(listed, each, strict=True)]
        with _bar(len(requests), shown=progress) as advance:
            return self._threads.run(self._all(self.dialect.prompts, requests, advance))

    @takes_params
    def stream(self, prompt: AnyPrompt, params: SamplingParams | None = None) -> Iterator[Delta]:
        """The deltas of one prompt's samples while they run; closing the iterator closes the connection.

        ParamsError for what the server cannot be asked for is raised by the call, the other errors of `generate` by the
        iterator.
        """
        request = self._stream_request(prompt, params)
        return self._threads.iterate(self._deltas(self.dialect.prompts, request))

    @takes_params
    async def astream(self, prompt: AnyPrompt, params: SamplingParams | None = None) -> AsyncIterator[Delta]:
        """The deltas of `stream`, for an event loop; cancelling the task closes the connection."""
        request = self._stream_request(prompt, params)
        async for delta in self._threads.aiterate(self._deltas(self.dialect.prompts, request)):
            yield delta

    @takes_params
    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        continue_final_message: bool = False,
    ) -> Completion:
        """The assistant's next message; the server writes the messages with its own template.

        What a server separates from the content, such as reasoning, is not in the text. Without `params` the server's
        own defaults apply and the reply may fill the context. With `continue_final_message` the text goes on with the
        last message, an assistant's. The errors are those of `generate`.
        """
        request = self._chat(messages, params, stream=False, continued=continue_final_message)
        return self._threads.run(self._whole(self.dialect.chats, request))

    @takes_params
    def chat_stream(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        continue_final_message: bool = False,
    ) -> Iterator[Delta]:
        """The deltas of `chat`, with its parameters; the errors are those of `stream`."""
        request = self._chat(messages, params, stream=True, continued=continue_final_message)
        return self._threads.iterate(self._deltas(self.dialect.chats, request))

    def close(self, *, drain_s: float = 0.0) -> None:
        """Closes all connections, which aborts the requests that run; `drain_s` is that of `LLM.close`, unused."""
        self._threads.close(self._server.close())

    def __enter__(self) -> RemoteLLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        """Raises NotRemoteError for the parts of `LLM` that need the model itself."""
        if hasattr(LLM, name) or name in _OF_MODELS:
            raise NotRemoteError(f"{name} must be asked of a model in this process, got a server; open LLM(folder)")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{nearest(name, dir(self))}")

    def _prompt(self, prompt: AnyPrompt, params: SamplingParams | None, *, stream: bool) -> RemoteRequest:
        route, parts = self.dialect.prompts, prompt_parts(prompt)
        if parts["salt"] and not route.has_salt:
            raise ParamsError(f"prompt salt must be left out for {route.dialect.name}, which has no field for it")
        if parts["adapter"] is not None and route.form == "completion":
            raise ParamsError(f"prompt adapter must be left out for {route.dialect.name}, which has no names for them")
        return self._request(route, params, parts, max_tokens=16, stream=stream)

    def _stream_request(self, prompt: AnyPrompt, params: SamplingParams | None) -> RemoteRequest:
        if not is_one_prompt(prompt):
            raise ParamsError(f"prompt must be one text, list of ids or Prompt, got {prompt!r:.60}; use generate")
        return self._prompt(prompt, params, stream=True)

    def _chat(
        self, messages: Sequence[Message], params: SamplingParams | None, *, stream: bool, continued: bool
    ) -> RemoteRequest:
        route = self.dialect.chats
        if continued and not route.continues:
            rule = f"must be False for {route.dialect.name}, which has no field for it"
            raise ParamsError(f"continue_final_message {rule}, got True; leave it out")
        parts = {"messages": checked_messages(messages), "continue_final_message": continued}
        return self._request(route, params, parts, max_tokens=None, stream=stream)

    def _request(
        self,
        route: RemoteRoute,
        params: SamplingParams | None,
        parts: Mapping[str, Any],
        *,
        max_tokens: int | None,
        stream: bool,
    ) -> RemoteRequest:
        """The request with its fields. Raises ParamsError for what the server cannot be asked for."""
        if params is not None and not isinstance(params, SamplingParams):
            raise ParamsError(f"params must be a SamplingParams, got {type(params).__name__}")
        if params is None:
            seed = fresh_seed()
            given, fields = engine_defaults(route, max_tokens=max_tokens, seed=seed)
            return RemoteRequest(params=given, seed=seed, fields=fields, stream=stream, by_default=True, **parts)
        check_constraint_options(params)
        if stream and params.best_of is not None and params.best_of > params.n:
            raise ParamsError(f"best_of must be n or None to stream, got {params.best_of}; use generate")
        if stream and params.prompt_logprobs is not None:
            raise ParamsError(f"prompt_logprobs must be None to stream, got {params.prompt_logprobs}; use generate")
        seed = fresh_seed() if params.seed is None else params.seed
        given = params.unwrapped.replace(seed=seed)
        fields = inside_fields(route, given) if self.sampler == "tirage" else fields_of(route, given)
        return RemoteRequest(params=given, seed=seed, fields=fields, stream=stream, **parts)

    async def _all(
        self, route: RemoteRoute, requests: Sequence[RemoteRequest], advance: Callable[[], None]
    ) -> list[Completion]:
        """The completions of requests, of which `max_running` run at once; the first failure aborts the others."""

        async def one(request: RemoteRequest) -> Completion:
            async with self._running:
                completion = await self._whole(route, request)
            advance()
            return completion

        return await all_or_first_failure(one(request) for request in requests)

    async def _whole(self, route: RemoteRoute, request: RemoteRequest) -> Completion:
        reader, body = await self._written(route, request)
        answer = RemoteAnswer(request)
        answer.add(reader.read(checked(await self._server.post(route.path, body))))
        return answer.completion()

    async def _deltas(self, route: RemoteRoute, request: RemoteRequest) -> AsyncGenerator[Delta, None]:
        reader, body = await self._written(route, request)
        answer = RemoteAnswer(request)
        async with contextlib.aclosing(self._server.events(route.path, body)) as events:
            async for event in events:
                for delta in answer.deltas(answer.add(reader.read(checked(event)))):
                    yield delta
        for delta in answer.end():
            yield delta

    async def _written(self, route: RemoteRoute, request: RemoteRequest) -> tuple[Any, dict[str, Any]]:
        """The form of a request, and its body."""
        async with self._looking:
            if self._owner is None:
                self._owner = await self._look()
        if self._owner == OURS and not request.by_default:
            plain = request.params.to_dict()
            own = {name: plain[name] for name in ("semantics", "logprobs_mode")}
            request = replace(request, fields={**own, **request.fields})
        reader = FORMATS[route.form](route, request)
        return reader, reader.body(self._name or "")

    async def _look(self) -> str:
        """The name by which the server calls itself, "" for none; finds the model's name too.

        Raises ModelError for a server of another dialect, and for one of several models.
        """
        try:
            found = typed(await self._server.get("/v1/models"), dict, "models")
        except RemoteError as error:
            # One that does not list its models may have the one that is asked for.
            if self._name is None or error.status != _NOT_FOUND:
                raise
            return ""
        listed = members(found, "data", dict)
        owner = member(listed[0], "owned_by", str, "") if listed else ""
        self._check_owner(owner)
        # vLLM lists its adapters too, each with its parent.
        names = [member(each, "id", str) for each in listed if not each.get("parent")]
        if self._name is None and len(names) != 1:
            known = ", ".join(names[:20]) or "none"
            raise ModelError(f"model_name must be one of those that the server has, {known}; got none")
        self._name = self._name or names[0]
        return owner

    def _check_owner(self, owner: str) -> None:
        """Raises ModelError for a server that is known to read another dialect: it may pass over fields silently."""
        known, own = _OWNERS.get(owner), self.dialect.owners
        speaks = owner == OURS and self.dialect.prompts.form != "completion" and self.sampler == "engine"
        if own and known is not None and owner not in own and not speaks:
            place = self._server.options.url
            raise ModelError(f"dialect must be {known!r} for the server at {place}, which calls itself so, got another")


_OF_MODELS = frozenset({"engine", "model", "tokenizer", "chat_template", "generation_config", "folder", "cache_length"})


def check_sampler(sampler: Any, dialect: str) -> None:
    """Raises ParamsError unless the sampler is "engine" or, for vLLM, "tirage"."""
    if sampler not in ("engine", "tirage"):
        raise ParamsError(f"sampler must be 'engine' or 'tirage', got {sampler!r:.60}")
    if sampler == "tirage" and dialect != "vllm":
        raise ParamsError(f"sampler must be 'engine' for dialect {dialect!r}, got 'tirage', which goes with 'vllm'")


def checked(answer: Any) -> Any:
    """The answer itself. Raises RemoteError for one that is an error, as servers send with status 200 in streams."""
    if isinstance(answer, dict) and answer.get("error"):
        raise RemoteError(f"the server failed: {message_of(answer)}")
    return answer


@contextlib.contextmanager
def _bar(total: int, *, shown: bool) -> Iterator[Callable[[], None]]:
    """A block with a bar on a terminal's stderr, and what is called after each request."""
    if not shown:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("requests", total=total)
        yield lambda: bar.advance(task)
