"""Tests in engines' own environments: `scripts/engines.py` builds each environment and names its folder here.

Everywhere else these folders are passed over, as their engines are not installed.
"""

from __future__ import annotations

import os
from pathlib import Path

NAMED = os.environ.get("TIRAGE_ENGINES", "").replace(",", " ").split()

collect_ignore = [
    folder.name for folder in Path(__file__).parent.iterdir() if folder.is_dir() and folder.name not in NAMED
]
