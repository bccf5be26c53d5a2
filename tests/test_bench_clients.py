"""The request functions of SGLang's and vLLM's own benchmark clients, as published, against a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from servers import shared

FOLDER = os.environ.get("TIRAGE_TEST_PEERS")
TESTS = Path(__file__).parent

sys.path.insert(0, str(TESTS.parent / "scripts"))
from peer_clients import part_of  # noqa: E402


@pytest.mark.skipif(not FOLDER, reason="run scripts/peer_clients.py FOLDER and name the folder in TIRAGE_TEST_PEERS")
@pytest.mark.parametrize(("peer", "count"), [("sglang", 15), ("vllm", 4)])
def test_a_benchmark_client_of_another_engine_is_answered(peer: str, count: int) -> None:
    path = os.pathsep.join([FOLDER or "", os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(TESTS / "bench_session.py"), peer, shared().url],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == count
    assert [one for one in answers if not one["success"]] == []
    assert [one for one in answers if not one["text"] or not 0 < one["tokens"] <= 8] == []


SOURCE = """
import json
import os, sys
from sglang.benchmark.utils import remove_prefix, set_ulimit
from sglang.srt.network import resolve

LIMIT = 3
other = resolve(LIMIT)

def helper(x):
    return remove_prefix(x, "a") * LIMIT

async def wanted(x: int):
    return json.dumps(helper(x))
"""


def test_a_client_is_taken_with_all_that_it_uses_and_nothing_else() -> None:
    part, helpers = part_of(SOURCE, ["wanted"])
    assert helpers == {"sglang.benchmark.utils": {"remove_prefix"}}
    assert "import json" in part
    assert "LIMIT = 3" in part
    assert 'return remove_prefix(x, "a") * LIMIT' in part
    assert not [word for word in ("sglang", "resolve", "sys", "set_ulimit") if word in part]
