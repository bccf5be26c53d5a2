"""What guided decoding can enforce, as data."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from tirage.guided.keywords import ANNOTATIONS, ENFORCED, FORMATS, REFUSED
from tirage.guided.tags import FORMATS as TAG_FORMATS
from tirage.guided.xgr import KEYWORDS
from tirage.params.guided import MODES


def supported() -> dict[str, Any]:
    """Everything that can be asked for, by name.

    `modes` of GuidedDecodingParams; `backends` with True for those that are installed; JSON Schema `keywords` that are
    enforced, `formats` of strings, `annotations` that are read past because they never decide anything, and keywords
    that are `refused`, each with what to write instead; the keywords that the `xgrammar` backend takes; formats of
    `structural_tags`.
    """
    return {
        "modes": list(MODES),
        "backends": {name: find_spec(name) is not None for name in ("llguidance", "xgrammar")},
        "keywords": sorted(ENFORCED),
        "formats": sorted(FORMATS),
        "annotations": sorted(ANNOTATIONS),
        "refused": dict(sorted(REFUSED.items())),
        "xgrammar": sorted(KEYWORDS),
        "structural_tags": sorted(TAG_FORMATS),
    }
