"""Runs the targets of `chaos.fuzz` one after another, each in a process of its own, from a few real examples."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hostile import NORMAL

TESTS = Path(__file__).parents[1]
INPUT_S, MEMORY_MB = 5, 3000
"""What one input may take."""
BUSY = 12
"""How much longer it may take by the clock on a machine that does other work, which libFuzzer does not see."""
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
_BODIES = (
    *NORMAL.values(),
    {**NORMAL["/v1/chat/completions"], "thinking": {"type": "enabled", "budget_tokens": 1024}},
    {**NORMAL["/generate"], "output_ids": [5], "top": 4, "follow": [7]},
)
"""One for each reader of `chaos.fuzz.READERS`, in their order."""
SEEDS: Mapping[str, tuple[bytes, ...]] = {
    "request_parser": tuple(bytes([reader]) + json.dumps(body).encode() for reader, body in enumerate(_BODIES)),
    "schema_compiler": (json.dumps(_SCHEMA).encode(), b'{"type": "integer", "multipleOf": 3}', b'{"anyOf": [{}]}'),
    "regex": (b"(a|b)*c{1,3}[^x-z]\\d\nabc1", b"(?i:A)(?=b)b+?$\nab"),
    "gbnf": (b'root ::= "a" b* | [a-z]{2,3}\nb ::= ("c" root)?  # end',),
    "template": (_CHATML.encode(), b"{% set x = namespace(a=1) %}{{ x.a + 2 }}{{ messages | length }}"),
    "data_urls": (b"\x00data:image/png;base64,iVBORw0KGgo=", b"\xffUklGRgAAAABXQVZF", b"\x00file:///a.png"),
    "stop_engine": (b"\xff\x02ab|abc|b\nxxabcab", b"\x01\x03[ab]+c|end\naaacend"),
    "detokeniser": (bytes(range(64)),),
}


def fuzz(target: str, *, seconds: int, interpreter: str, folder: Path, clock: str = "wall") -> dict[str, Any]:
    """What came of one target after so many seconds: how many inputs, how much coverage, and the crash, if any."""
    corpus = folder / target
    corpus.mkdir(parents=True, exist_ok=True)
    for index, seed in enumerate(SEEDS[target]):
        (corpus / f"seed{index}").write_bytes(seed)
    input_s = INPUT_S * (BUSY if clock == "spent" else 1)
    limits = [f"-max_total_time={seconds}", f"-timeout={input_s}", f"-rss_limit_mb={MEMORY_MB}", "-max_len=2048"]
    command = [interpreter, "-m", "chaos.fuzz", target, *limits, f"-artifact_prefix={folder}/{target}-", str(corpus)]
    paths = [str(TESTS.parent / "src"), str(TESTS), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environ, check=False)
    return {"case": f"fuzz {target}", "seconds": seconds, **told(done.stderr), "failures": crash(done, folder)}


def told(log: str) -> dict[str, int]:
    """The inputs that were run, and the edges that they covered, as libFuzzer says them."""
    runs, edges = re.findall(r"^#(\d+)\s", log, re.MULTILINE), re.findall(r"cov: (\d+)", log)
    done = re.findall(r"Done (\d+) runs", log)
    return {"inputs": int((done or runs or ["0"])[-1]), "edges": int((edges or ["0"])[-1])}


def crash(done: subprocess.CompletedProcess[str], folder: Path) -> list[str]:
    """The end of the log of a process that did not end well, with names of files in the folder; nothing for others."""
    if done.returncode == 0:
        return []
    said = re.findall(r"^(?:SUMMARY|.*ERROR: libFuzzer|artifact_prefix).*", done.stderr, re.MULTILINE)
    told = " / ".join([*done.stdout.splitlines()[-8:], *said]).replace(f"{folder}/", "")
    return [told[-1500:] or f"exit status {done.returncode}"]


def run(
    *, seconds: int, targets: tuple[str, ...] = (), interpreter: str = sys.executable, clock: str = "wall"
) -> Iterator[dict[str, Any]]:
    """One row for each target; what crashed is kept in a folder whose name is printed, as a row names files in it."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-fuzz-"))
    print(f"inputs are kept in {folder}", file=sys.stderr, flush=True)
    for target in targets or tuple(SEEDS):
        yield fuzz(target, seconds=seconds, interpreter=interpreter, folder=folder, clock=clock)
