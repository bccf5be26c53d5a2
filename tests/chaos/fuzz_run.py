"""Runs the targets of `chaos.fuzz` one after another, each in a process of its own, from a few real examples."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hostile import NORMAL

TESTS = Path(__file__).parents[1]
INPUT_S, MEMORY_MB = 5, 3000
"""What one input may take."""
_SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, "b"]}, "c": {"$ref": "#/$defs/d"}},
    "required": ["a"],
    "$defs": {"d": {"type": "array", "items": {"type": "string", "pattern": "^a+$"}, "maxItems": 3}},
}
_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SEEDS: Mapping[str, tuple[bytes, ...]] = {
    "request_parser": tuple(
        mark + json.dumps(body).encode()
        for mark, body in zip((b"\x30", b"\xb0", b"\x90"), NORMAL.values(), strict=True)
    ),
    "schema_compiler": (json.dumps(_SCHEMA).encode(), b'{"type": "integer", "multipleOf": 3}', b'{"anyOf": [{}]}'),
    "regex": (b"(a|b)*c{1,3}[^x-z]\\d\nabc1", b"(?i:A)(?=b)b+?$\nab"),
    "gbnf": (b'root ::= "a" b* | [a-z]{2,3}\nb ::= ("c" root)?  # end',),
    "template": (_CHATML.encode(), b"{% set x = namespace(a=1) %}{{ x.a + 2 }}{{ messages | length }}"),
    "data_urls": (b"\x00data:image/png;base64,iVBORw0KGgo=", b"\xffUklGRgAAAABXQVZF", b"\x00file:///a.png"),
    "stop_engine": (b"\xff\x02ab|abc|b\nxxabcab", b"\x01\x03[ab]+c|end\naaacend"),
    "detokeniser": (bytes(range(64)),),
}


def fuzz(target: str, *, seconds: int, interpreter: str, folder: Path) -> dict[str, Any]:
    """What came of one target after so many seconds: how many inputs, how much coverage, and the crash, if any."""
    corpus = folder / target
    corpus.mkdir(parents=True, exist_ok=True)
    for index, seed in enumerate(SEEDS[target]):
        (corpus / f"seed{index}").write_bytes(seed)
    limits = [f"-max_total_time={seconds}", f"-timeout={INPUT_S}", f"-rss_limit_mb={MEMORY_MB}", "-max_len=2048"]
    command = [interpreter, "-m", "chaos.fuzz", target, *limits, f"-artifact_prefix={folder}/{target}-", str(corpus)]
    paths = [str(TESTS.parent / "src"), str(TESTS), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environ, check=False)
    return {"case": f"fuzz {target}", "seconds": seconds, **told(done.stderr), "failures": crash(done)}


def told(log: str) -> dict[str, int]:
    """The inputs that were run, and the edges that they covered, as libFuzzer says them."""
    runs, edges = re.findall(r"^#(\d+)\s", log, re.MULTILINE), re.findall(r"cov: (\d+)", log)
    done = re.findall(r"Done (\d+) runs", log)
    return {"inputs": int((done or runs or ["0"])[-1]), "edges": int((edges or ["0"])[-1])}


def crash(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The end of the log of a process that did not end well; nothing for one that did."""
    if done.returncode == 0:
        return []
    said = re.findall(r"^(?:SUMMARY|.*ERROR: libFuzzer|artifact_prefix).*", done.stderr, re.MULTILINE)
    return [" / ".join([*done.stdout.splitlines()[-8:], *said])[-1500:] or f"exit status {done.returncode}"]


def run(*, seconds: int, targets: tuple[str, ...] = (), interpreter: str = sys.executable) -> list[dict[str, Any]]:
    """One row for each target; what crashed is kept in a folder whose name the row says."""
    rows = []
    folder = Path(tempfile.mkdtemp(prefix="chaos-fuzz-"))
    for target in targets or tuple(SEEDS):
        rows.append(fuzz(target, seconds=seconds, interpreter=interpreter, folder=folder))
        print(json.dumps(rows[-1]), flush=True)
    return rows
