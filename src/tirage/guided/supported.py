"""What guided decoding can enforce, as data."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from tirage.guided.json_schema.formats import FORMATS
from tirage.guided.json_schema.keywords import ANNOTATIONS, ENFORCED, REFUSED
from tirage.guided.structural_tag import FORMATS as TAG_FORMATS
from tirage.guided.xgrammar_backend import KEYWORDS
from tirage.params.guided import MODES


def supported() -> dict[str, Any]:
    """Everything that a request can ask for, by name.

    `modes`: of GuidedDecodingParams. `backends`: True for those that are installed. JSON Schema: `keywords` that are
    enforced, `formats` of strings, `annotations` that are ignored because they do not affect validation, and `refused`:
    keywords that cannot always be enforced, each with what is refused. `xgrammar`: the keywords that this backend
    takes. `structural_tags`: the formats.
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
