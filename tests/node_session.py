"""Sessions in JavaScript: scripts for Node with the clients' packages from a folder of npm's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOLDER = os.environ.get("TIRAGE_TEST_NODE_PACKAGES") or str(Path(sys.prefix, "javascript"))
"""The folder in which npm has installed the packages: by default that of `make javascript`."""


def missing(*packages: str) -> str:
    """What a session that needs these packages lacks, as the reason to skip it; empty when all is there."""
    if shutil.which("node") is None:
        return "node is not installed"
    absent = [name for name in packages if not (Path(FOLDER) / "node_modules" / name).is_dir()]
    return f"npm has not installed {', '.join(absent)}; make javascript does" if absent else ""


def node_session(script: str, url: str) -> Any:
    """What a session prints."""
    run = subprocess.run(["node", str(HERE / script), FOLDER, url], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])
