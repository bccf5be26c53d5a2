"""What goes wrong with a cluster is said in one line that names the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from served import RayCluster

COMMAND = [sys.executable, "-m", "tirage"]
SERVE = [*COMMAND, "serve", "--ray", "--num-cpus", "0.1", "--port", "0"]


def run(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **environ})


def test_an_address_without_a_cluster() -> None:
    done = run(*SERVE, "--ray-address", "127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr.startswith("error: --ray-address must be that of a running Ray cluster, got 127.0.0.1:9:")
    assert "`ray start --head`" in done.stderr


def test_a_model_that_is_not_there() -> None:
    done = run(*SERVE, "--model", "nowhere")
    assert done.returncode != 0
    assert "error: " in done.stderr.splitlines()[-1]
    assert "nowhere" in done.stderr.splitlines()[-1]


def test_replicas_that_do_not_start(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "hidden_size": 3}')
    done = run(*SERVE, "--model", str(folder))
    assert done.returncode == 1
    # Among lines of Ray's own.
    (told,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert told.startswith("error: the replicas do not start: ")
    assert "ModelError" in told


WITHOUT = """
import os, sys, ray
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray.init("local", include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": sys.argv[1]}})
from tirage.cluster import deployment
from tirage.cluster.ray_cluster import cluster
with cluster():
    raise SystemExit("not reached")
"""


@pytest.mark.parametrize(
    ("module", "told"),
    [("raise ModuleNotFoundError('No module named tirage', name='tirage')", "has no tirage (No module named tirage)"),
     ("import sys, types\nfor name in ('tirage.server', 'tirage.server.replay'):\n"
      "    sys.modules[name] = types.ModuleType(name)\n"
      "sys.modules['tirage.server.replay'].own_version = lambda: '0.0.1'\n__path__ = []", "has tirage 0.0.1"),
     ])  # fmt: skip
def test_a_machine_without_the_same_tirage_is_named(tmp_path: Path, module: str, told: str) -> None:
    (tmp_path / "tirage.py").write_text(module)
    done = run(sys.executable, "-c", WITHOUT, str(tmp_path))
    assert done.returncode == 1
    message = done.stderr.strip().splitlines()[-1]
    assert message.startswith("tirage.errors.TirageError: every machine of the cluster must have tirage ")
    assert told in message


def test_a_cluster_that_runs_already_is_joined(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": 1, "prompt": "The dog"}\n')
    batch = (*COMMAND, "batch", str(tmp_path / "in.jsonl"), "--max-tokens", "3", "--quiet", "--backend", "numpy")
    with RayCluster() as running:
        joined = run(*batch, "--out", str(tmp_path / "a"), "--ray", **running.environ, RAY_ADDRESS=running.address)
    assert joined.returncode == 0, joined.stderr
    assert run(*batch, "--out", str(tmp_path / "b")).returncode == 0
    first, second = ((tmp_path / name / "part-000000.jsonl").read_bytes() for name in "ab")
    assert first == second
