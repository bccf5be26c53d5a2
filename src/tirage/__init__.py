"""tirage: from logits to drawn tokens to text; exact, reproducible, explained.

The public surface, nothing else. Names load on first use, so `import tirage` stays cheap.
"""

from __future__ import annotations

from importlib import import_module

from tirage.providers import register_provider

TYPE_CHECKING = False
# `typing` would be nearly all of the time that `import tirage` takes; type checkers know the name.
if TYPE_CHECKING:
    from typing import Any

    from tirage.batch import Batch as Batch
    from tirage.draw import Draw as Draw
    from tirage.draw import Status as Status
    from tirage.engine_replay import EngineReplay as EngineReplay
    from tirage.engine_replay import replay_engine as replay_engine
    from tirage.errors import GrammarError as GrammarError
    from tirage.errors import ModelError as ModelError
    from tirage.errors import ParamsError as ParamsError
    from tirage.errors import RowError as RowError
    from tirage.errors import TirageError as TirageError
    from tirage.exact.seeding import seeds as seeds
    from tirage.llm import LLM as LLM
    from tirage.llm import Completion as Completion
    from tirage.llm import Delta as Delta
    from tirage.llm import Prompt as Prompt
    from tirage.params import BeamSearchParams as BeamSearchParams
    from tirage.params import GuidedDecodingParams as GuidedDecodingParams
    from tirage.params import RequestOutputKind as RequestOutputKind
    from tirage.params import SamplingParams as SamplingParams
    from tirage.params import SamplingType as SamplingType
    from tirage.processors import register_processor as register_processor
    from tirage.sampling import law as law
    from tirage.sampling import sample as sample
    from tirage.semantics import Semantics as Semantics
    from tirage.tracing import Explanation as Explanation
    from tirage.tracing import explain as explain
    from tirage.verification import Verification as Verification
    from tirage.verification import verify as verify
    from tirage.warm import warmup as warmup
    from tirage.watermarks import Watermark as Watermark
    from tirage.watermarks.detection import Detection as Detection
    from tirage.watermarks.detection import detect as detect
    from tirage.watermarks.detection import tokenizer_fingerprint as tokenizer_fingerprint

__version__ = "0.1.0"

_HOMES = {
    "tirage.batch": ("Batch",),
    "tirage.watermarks.detection": ("Detection", "detect", "tokenizer_fingerprint"),
    "tirage.draw": ("Draw", "Status"),
    "tirage.engine_replay": ("EngineReplay", "replay_engine"),
    "tirage.errors": ("GrammarError", "ModelError", "ParamsError", "RowError", "TirageError"),
    "tirage.exact.seeding": ("seeds",),
    "tirage.tracing": ("Explanation", "explain"),
    "tirage.llm": ("LLM", "Completion", "Delta", "Prompt"),
    "tirage.params": (
        "BeamSearchParams",
        "GuidedDecodingParams",
        "RequestOutputKind",
        "SamplingParams",
        "SamplingType",
    ),
    "tirage.processors": ("register_processor",),
    "tirage.sampling": ("law", "sample"),
    "tirage.semantics": ("Semantics",),
    "tirage.verification": ("Verification", "verify"),
    "tirage.warm": ("warmup",),
    "tirage.watermarks": ("Watermark",),
}
# Packages that are called by their own name, as in `tirage.dialects.from_sglang`.
_PARTS = ("cluster", "compat", "dialects", "engine_replay", "guided", "remote")
_HOME = {name: module for module, names in _HOMES.items() for name in names}

register_provider("JitableSamplingParams", "tirage.compat.easydel", "JitableSamplingParams")
register_provider("RemoteLLM", "tirage.remote", "RemoteLLM")

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"tirage.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'tirage' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
