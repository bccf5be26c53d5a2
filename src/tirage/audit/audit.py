"""`audit`: every check in its order, each of them a finding, whatever becomes of the others."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tirage.audit.context import AuditContext
from tirage.audit.finding import Finding, not_tested
from tirage.audit.lengths import (
    check_greedy,
    check_max_tokens,
    check_min_tokens,
    check_model,
    check_schema,
    check_stop,
)
from tirage.audit.limits import AuditLimits
from tirage.audit.parameters import LAW_CHECKS, check_logit_bias
from tirage.audit.penalties import check_additive, check_repetition
from tirage.audit.presets import check_presets
from tirage.audit.report import AuditReport
from tirage.audit.reported import check_logprobs, check_n
from tirage.audit.search import find_positions
from tirage.audit.seeds import check_another_seed, check_seed, check_seed_under_load
from tirage.audit.server import AuditedServer, NotTestedError
from tirage.errors import ModelError, ParamsError, RemoteError, TirageError, nearest
from tirage.remote.connection import ConnectionOptions, RemoteServer
from tirage.remote.routes import OURS, REMOTE_DIALECTS
from tirage.semantics import PRESETS

_RETRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCheck:
    """A promise by its name, the parameters that its dialect must have, the findings it stands on, and its test."""

    name: str
    run: Callable[[AuditContext], Awaitable[Finding]]
    fields: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


_LAW = ("another seed", "logprobs")


def _law(name: str, run: Callable[[AuditContext], Awaitable[Finding]]) -> AuditCheck:
    return AuditCheck(name=name, run=run, fields=(name,), needs=_LAW)


async def _presets_alone(context: AuditContext) -> Finding:
    """The finding of `check_presets`, which leaves the fit in the context."""
    finding, context.fit = await check_presets(context)
    return finding


CHECKS: tuple[AuditCheck, ...] = (
    AuditCheck(name="another seed", run=check_another_seed, fields=("seed",)),
    AuditCheck(name="seed", run=check_seed, fields=("seed",)),
    AuditCheck(name="seed under load", run=check_seed_under_load, fields=("seed",), needs=("seed",)),
    AuditCheck(name="logprobs", run=check_logprobs, fields=("logprobs",), needs=("another seed",)),
    *(_law(each.parameter, each.run) for each in LAW_CHECKS),
    _law("logit_bias", check_logit_bias),
    *(_law(name, partial(check_additive, name=name)) for name in ("frequency_penalty", "presence_penalty")),
    _law("repetition_penalty", check_repetition),
    AuditCheck(name="preset", run=_presets_alone, needs=(*_LAW, "temperature", "top_k", "top_p", "min_p")),
    AuditCheck(name="n", run=check_n, fields=("n",), needs=_LAW),
    AuditCheck(name="greedy", run=check_greedy, fields=("temperature",)),
    AuditCheck(name="stop", run=check_stop, fields=("stop",)),
    AuditCheck(name="max_tokens", run=check_max_tokens, fields=("max_tokens",)),
    AuditCheck(name="min_tokens", run=check_min_tokens, fields=("min_tokens", "stop_token_ids")),
    AuditCheck(name="json schema", run=check_schema),
    AuditCheck(name="model", run=check_model),
)
"""Every check in its order; the level of the audit is shared out evenly among them."""


def audit(
    url: str,
    *,
    dialect: str | None = None,
    preset: str | None = None,
    model_name: str | None = None,
    api_key: str | None = None,
    only: Sequence[str] = (),
    limits: AuditLimits | None = None,
    seed: int | None = None,
    timeout_s: float = 30.0,
    progress: Callable[[int], None] | None = None,
) -> AuditReport:
    """The report on whether the server at `url` obeys the sampling parameters of its requests.

    `dialect` is a name of `tirage.remote.REMOTE_DIALECTS`; by default the one that the server's own name in
    `/v1/models` stands for, else "openai". `preset` is the meaning to hold it to, by default that of its engine, none
    for a server of unknown kind. `only` names checks; those that they stand on run too. `seed` makes the audit's own
    choices repeatable. `progress` is called with the number of requests after each one.

    A server that is gone, slow, or lists no log-probabilities is no error: its findings say what could not be tested.
    Raises ParamsError for wrong options, and ModelError where httpx is missing.
    """
    checks = chosen_checks(only)
    for name, value, known in (("dialect", dialect, REMOTE_DIALECTS), ("preset", preset, PRESETS)):
        if value is not None and value not in known:
            raise ParamsError(
                f"{name} must be one of {', '.join(known)}, got {value!r:.60}{nearest(str(value), known)}"
            )
    if importlib.util.find_spec("httpx") is None:
        raise ModelError("an audit needs httpx, which is missing: pip install 'tirage[remote]'")
    options = ConnectionOptions(url=url, api_key=api_key, timeout_s=timeout_s, retries=_RETRIES)
    given = limits or AuditLimits()

    async def run() -> AuditReport:
        connection = RemoteServer(options)
        server = AuditedServer(connection, dialect, name=model_name, limits=given)
        if progress is not None:
            server.advance = partial(_tell, progress, server)
        try:
            return await _audited(server, options.url, checks, preset, given, random.Random(seed))
        finally:
            await connection.close()

    return asyncio.run(run())


def _tell(progress: Callable[[int], None], server: AuditedServer) -> None:
    progress(server.count.requests)


def chosen_checks(only: Sequence[str]) -> tuple[AuditCheck, ...]:
    """The checks of these names with those that they stand on, all for none. Raises ParamsError for unknown names."""
    known = {each.name: each for each in CHECKS}
    wanted: set[str] = {name for each in only for name in (each, *(known[each].needs if each in known else ()))}
    if any("penalty" in name for name in wanted):
        wanted.add("logit_bias")  # It makes the words likely enough that penalties are seen.
    for name in wanted - set(known):
        raise ParamsError(f"only must name checks, {', '.join(known)}, got {name!r:.60}{nearest(name, known)}")
    return tuple(each for each in CHECKS if not only or each.name in wanted)


async def _audited(
    server: AuditedServer,
    url: str,
    checks: Sequence[AuditCheck],
    preset: str | None,
    limits: AuditLimits,
    choices: random.Random,
) -> AuditReport:
    context = AuditContext(server=server, threshold=math.log(len(CHECKS) / limits.level), random=choices)
    reason = await _begin(context, preset)
    findings: dict[str, Finding] = {}
    for check in checks:
        found = not_tested(check.name, reason) if reason else await _finding(context, check, findings)
        findings[check.name] = found
    return AuditReport(
        url=url,
        dialect=server.dialect_name,
        owner=server.owner,
        model=server.name,
        findings=tuple(findings.values()),
        preset=context.fit,
        limits=limits,
        checks=len(CHECKS),
        requests=server.count.requests,
        seconds=server.count.seconds,
        arithmetic_s=context.arithmetic_s,
        notes=tuple(context.notes),
    )


async def _begin(context: AuditContext, preset: str | None) -> str:
    """Looks at the server and finds positions; why nothing can be tested, "" where something can."""
    server = context.server
    try:
        await server.look()
        context.promise = preset or promised(server)
        context.positions = await find_positions(context)
    except NotTestedError as error:
        context.no_positions = str(error)
    except TirageError as error:
        return str(error)
    return ""


def promised(server: AuditedServer) -> str | None:
    """The preset of a server that calls itself by the name of an engine, None for any other."""
    known = {owner for each in REMOTE_DIALECTS.values() for owner in each.owners}
    return server.preset if server.owner in known and server.owner in (*server.dialect.owners, OURS) else None


async def _finding(context: AuditContext, check: AuditCheck, findings: dict[str, Finding]) -> Finding:
    """The finding of one check, or why there is none."""
    server = context.server
    route = server.dialect.chats if check.name == "json schema" else None
    fields = ("guided_decoding",) if check.name == "json schema" else check.fields
    if not server.has(*fields, route=None) and not (route and server.has(*fields, route=route)):
        return not_tested(check.name, f"{server.dialect_name} has no field for it", asked=False)
    for name in check.needs:
        if name in findings and findings[name].verdict == "not obeyed":
            return not_tested(check.name, f"it stands on {name}, which is not obeyed")
    context.biased = findings["logit_bias"].verdict == "obeyed" if "logit_bias" in findings else False
    before = server.count.requests
    try:
        found = await check.run(context)
    except (NotTestedError, RemoteError) as error:
        found = not_tested(check.name, str(error))
    except ParamsError as error:
        found = not_tested(check.name, f"it cannot be asked for: {error}")
    return replace(found, requests=server.count.requests - before)
