"""Transitional names."""

from __future__ import annotations

from typing import Any

from tirage.compiled_params import CompiledParams, Program, compiled
from tirage.operators import FIRST_FILTER, OPERATIONS, Step
from tirage.operators.row import SCOPES
from tirage.operators.top_p import RULES as TOP_P_RULES


class _Ops:
    def __getattr__(self, name: str) -> Any:
        if name == "END":
            return 0
        for op in OPERATIONS.values():
            if op.name == name:
                return op
        raise AttributeError(name)

    def __call__(self, code: int) -> Any:
        return OPERATIONS[int(code)]

    def __iter__(self) -> Any:
        return iter(OPERATIONS.values())


Op: Any = _Ops()
plan = compiled
__all__ = ["FIRST_FILTER", "SCOPES", "TOP_P_RULES", "CompiledParams", "Op", "Program", "Step", "compiled", "plan"]
