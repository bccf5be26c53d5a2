"""The budget of reasoning by the names that other servers have for it."""

from __future__ import annotations

from tirage.dialects import DialectError
from tirage.errors import ParamsError
from tirage.params import SamplingParams


def with_budget(params: SamplingParams, name: str, budget: int) -> SamplingParams:
    """The parameters with the `thinking_budget` that a field of this name asks for.

    Raises DialectError where they have one already, and where they cannot have one.
    """
    if params.thinking_budget is not None:
        raise DialectError(f"{name} must stand alone, got {budget} and another budget; leave one out", name)
    try:
        return params.replace(thinking_budget=budget)
    except ParamsError as error:
        raise DialectError(str(error).replace("thinking_budget", name), name) from None
