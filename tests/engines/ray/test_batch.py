"""Files and datasets of prompts on a real cluster: the bytes of a run in one process, whatever is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.data
from served import RayCluster, below, until

from tirage import LLM, ModelError, ParamsError, SamplingParams, TirageError
from tirage.cluster import Cluster, Summary, generate, seed_of
from tirage.cluster.ray_workers import check_identity

COMMON = SamplingParams(top_p=0.9, max_tokens=4)
SMALL = Cluster(workers=2, num_cpus=0.1)
KILLS = int(os.environ.get("TIRAGE_TEST_KILLS", "2"))
"""How often a worker is killed, and a driver."""
WORDS = ("Once upon a time", "The dog", "She said")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init("local", include_dashboard=False, num_cpus=2, logging_level="ERROR", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": f"r{i}", "prompt": WORDS[i % 3], "params": {"max_tokens": 1 + i % 4}} for i in range(count)]


def written(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def contents(out: Path) -> dict[str, bytes]:
    return {str(file.relative_to(out)): file.read_bytes() for file in sorted(out.rglob("*.json*"))}


@pytest.mark.usefixtures("cluster")
def test_a_file_gives_the_bytes_of_one_process(tmp_path: Path) -> None:
    chat = {"custom_id": "c", "url": "/v1/completions", "body": {"prompt": "The", "max_tokens": 3}}
    file = written(tmp_path / "in.jsonl", [*rows(700), "{broken", chat])
    common = SamplingParams(max_tokens=4)
    seen: list[tuple[int, int]] = []
    done = generate(file, common, out=tmp_path / "ray", cluster=SMALL, progress=lambda *at: seen.append(at))
    generate(file, common, out=tmp_path / "alone", backend="numpy")
    assert done == Summary(rows=702, earlier=0, failed=1)
    assert seen == [(i, 702) for i in range(703)]
    assert contents(tmp_path / "ray") == contents(tmp_path / "alone")
    # Begun alone and ended on the cluster.
    (tmp_path / "alone" / "part-000001.jsonl").unlink()
    assert generate(file, common, out=tmp_path / "alone", cluster=SMALL).rows == 256
    assert contents(tmp_path / "ray") == contents(tmp_path / "alone")


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_is_killed_is_replaced_and_its_rows_are_the_same(tmp_path: Path) -> None:
    file = written(tmp_path / "in.jsonl", [{"id": i, "prompt": "The dog"} for i in range(512 * (KILLS + 1))])
    generate(file, COMMON, out=tmp_path / "alone", backend="numpy")
    killed: set[int] = set()

    def kill(done: int, total: int) -> None:
        # The older one of the two, after every second part.
        if done % 512 == 1 and len(killed) < KILLS:
            workers = {pid for pid, name in below(os.getpid()) if name.startswith("ray::PartWorker")}
            victim = min(workers - killed)
            killed.add(victim)
            os.kill(victim, signal.SIGKILL)

    generate(file, COMMON, out=tmp_path / "ray", cluster=SMALL, progress=kill)
    assert len(killed) == KILLS
    assert contents(tmp_path / "ray") == contents(tmp_path / "alone")


def as_rows(dataset: Any) -> list[dict[str, Any]]:
    return sorted(dataset.take_all(), key=lambda row: row["id"])


@pytest.mark.usefixtures("cluster")
def test_a_dataset_gives_the_same_texts_in_any_partition() -> None:
    given = [*rows(60), {"id": "bad", "prompt": "The", "params": {"max_tokens": -1}}]
    found = as_rows(generate(ray.data.from_items(given), COMMON, cluster=SMALL))
    again = as_rows(generate(ray.data.from_items(given[::-1]).repartition(7), COMMON, cluster=Cluster(num_cpus=0.1)))
    assert found == again
    with LLM(backend="numpy") as llm:
        alone = llm.generate("The dog", COMMON.replace(max_tokens=2, seed=seed_of("r1")))[0]
    by_id = {row["id"]: row for row in found}
    assert (by_id["r1"]["text"], by_id["r1"]["seed"]) == (alone.text, seed_of("r1"))
    assert "max_tokens" in by_id["bad"]["error"]
    assert len(found) == 61
    assert {row["error"] for row in found if row["id"] != "bad"} == {None}


@pytest.mark.usefixtures("cluster")
def test_what_cannot_run_on_a_cluster_is_said(tmp_path: Path) -> None:
    file = written(tmp_path / "in.jsonl", rows(1))
    with LLM(backend="numpy") as llm, pytest.raises(ParamsError, match="model must be a name or a folder"):
        generate(file, COMMON, out=tmp_path / "a", model=llm, cluster=SMALL)
    with pytest.raises(TirageError, match=r"a worker does not start: .*ModelError: .*nowhere"):
        generate(file, COMMON, out=tmp_path / "b", model="nowhere", cluster=SMALL)
    with pytest.raises(ParamsError, match="workers must be an integer of at least 1"):
        Cluster(workers=0)
    assert not (tmp_path / "b").exists()


def test_workers_of_two_models_are_refused() -> None:
    check_identity({"name": "m", "fingerprint": "1"}, {"name": "m", "fingerprint": "1"})
    with pytest.raises(ModelError, match="the same on every machine, got 1 for m beside 2"):
        check_identity({"name": "m", "fingerprint": "1"}, {"name": "m", "fingerprint": "2"})


def command(file: Path, out: Path, *options: str) -> list[str]:
    common = ("--backend", "numpy", "--max-tokens", "4", "--quiet")
    return [sys.executable, "-m", "tirage", "batch", str(file), "--out", str(out), *common, *options]


ON_RAY = ("--ray", "--workers", "2", "--num-cpus", "0.1")


def test_a_driver_that_is_killed_goes_on_where_it_stopped(tmp_path: Path) -> None:
    file = written(tmp_path / "in.jsonl", [{"id": i, "prompt": "The dog"} for i in range(2000 + 200 * KILLS)])
    subprocess.run(command(file, tmp_path / "alone"), check=True)
    chance, places = random.Random(7), set[int]()
    with RayCluster() as running:
        joined = command(file, tmp_path / "ray", *ON_RAY, "--ray-address", running.address)
        for number in range(KILLS):
            last = len(contents(tmp_path / "alone")) * (number + 1) // (KILLS + 1)
            wanted = min(last, len(contents(tmp_path / "ray")) + chance.randint(0, 2))
            process = subprocess.Popen(joined, stderr=subprocess.DEVNULL, env=running.environ)
            until(lambda: len(contents(tmp_path / "ray")) >= wanted)  # noqa: B023
            time.sleep(chance.random() / 2)
            assert process.poll() is None, "the run has ended before it was killed"
            process.send_signal(signal.SIGKILL)
            process.wait()
            places.add(len(contents(tmp_path / "ray")))
        subprocess.run(joined, check=True, env=running.environ)
    assert max(places) > 1
    assert contents(tmp_path / "ray") == contents(tmp_path / "alone")


LIMITED = """
import resource, sys, ray
from pathlib import Path
from tirage import SamplingParams
from tirage.cluster import Cluster, generate
ray.init("local", include_dashboard=False, logging_level="ERROR", log_to_driver=False)
# Only of this process, which writes the folder.
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
generate(sys.argv[1], SamplingParams(max_tokens=4), out=sys.argv[2], cluster=Cluster(num_cpus=0.1))
"""


def test_a_full_disk_ends_a_run_on_a_cluster_and_the_next_goes_on(tmp_path: Path) -> None:
    short = [{"id": i, "prompt": "The dog"} for i in range(512)]
    file = written(tmp_path / "in.jsonl", [*short, *({"id": "x" * 400 + str(i), "prompt": "The"} for i in range(256))])
    program = [sys.executable, "-c", LIMITED, str(file), str(tmp_path / "ray")]
    full = subprocess.run(program, capture_output=True, text=True)
    assert full.returncode == 1
    assert full.stderr.strip().splitlines()[-1].startswith("OSError: [Errno 27] File too large")
    assert sorted(contents(tmp_path / "ray")) == ["part-000000.jsonl", "part-000001.jsonl", "run.json"]
    subprocess.run(command(file, tmp_path / "ray", *ON_RAY), check=True)
    subprocess.run(command(file, tmp_path / "alone"), check=True)
    assert contents(tmp_path / "ray") == contents(tmp_path / "alone")
