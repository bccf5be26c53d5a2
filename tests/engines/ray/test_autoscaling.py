"""Replicas under load: Ray adds them and takes them away again, and no request is lost meanwhile."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import ray
from ray import serve
from served import TESTS, until

from tirage import LLM, SamplingParams
from tirage.cluster import deployment

CLIENTS, MOST = 12, 3
BODY = {"text": "Once", "sampling_params": {"sampling_seed": 7, "max_new_tokens": 40, "ignore_eos": True}}
SETTINGS = {"max_running": 2, "max_queue": 64, "logits_processor": ("plain=slow_model:plain",)}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """One replica of slow steps, two more under load, which Ray adds after a second and takes away after five."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))
    variables = {"PYTHONPATH": path, "TIRAGE_TEST_STEP_S": "0.02", "RAY_USAGE_STATS_ENABLED": "0"}
    ray.init("local", include_dashboard=False, num_cpus=2, logging_level="ERROR", log_to_driver=False,
             runtime_env={"env_vars": variables})  # fmt: skip
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    made = deployment(
        "tiny", replicas=1, max_replicas=MOST, num_cpus=0.1, upscale_delay_s=1, downscale_delay_s=5, **SETTINGS
    )
    serve.run(made.bind(), name="tirage")
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
    ray.shutdown()


def running() -> int:
    """The replicas that take requests."""
    (found,) = serve.status().applications["tirage"].deployments.values()
    return dict(found.replica_states).get("RUNNING", 0)


def test_replicas_come_under_load_and_go_again_and_no_request_is_lost(url: str) -> None:
    params = SamplingParams(seed=7, max_tokens=40, ignore_eos=True)
    with LLM(backend="numpy") as llm:
        expected = llm.generate("Once", params)[0].token_ids
    assert running() == 1
    answers, over = Counter[tuple[int, bool]](), threading.Event()

    def ask(number: int) -> None:
        """Requests one after another: with the others' while there is load, alone at the end."""
        with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
            while not over.is_set() and (number == 0 or not calm.is_set()):
                answer = client.post("/generate", json=BODY)
                right = answer.status_code == 200 and tuple(answer.json()["output_ids"]) == expected
                answers[answer.status_code, right] += 1

    calm = threading.Event()
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(ask, number) for number in range(CLIENTS)]
        began = time.monotonic()
        try:
            until(lambda: running() == MOST)
            up = time.monotonic() - began
            calm.set()
            began = time.monotonic()
            until(lambda: running() == 1)
            down = time.monotonic() - began
        finally:
            calm.set()
            over.set()
        for client in clients:
            client.result()
    print(f"{MOST} replicas after {up:.0f} s, one again {down:.0f} s later, {sum(answers.values())} requests")
    assert set(answers) == {(200, True)}
    assert sum(answers.values()) > CLIENTS
