"""Many requests, one after another: the server's memory must not grow with their number."""

from __future__ import annotations

import math
import random
import threading
import time
from typing import Any

import numpy as np
from hostile import NORMAL, Client, memory
from servers import Server

SLOPE_MB = 1.0
"""Growth per thousand requests, in MB."""


def body_at(number: int) -> tuple[str, dict[str, Any]]:
    """The route and body of a request by its number: most are plain, some constrained, some long, some refused."""
    choose = random.Random(number)
    route = choose.choice(tuple(NORMAL))
    body: dict[str, Any] = {**NORMAL[route]}
    fields: dict[str, Any] = choose.choice((
        {}, {"temperature": 0.5}, {"top_k": 40, "min_p": 0.05}, {"stop": [f"s{number}"]}, {"n": 3},
        {"regex": f"[a-z ]{{1,9}}{number % 40}"}, {"json_schema": '{"type": "integer"}'}, {"logit_bias": {"5": 2.0}},
        {"bad_words": [f"w{number}"]}, {"temperature": -1},
    ))  # fmt: skip
    if "sampling_params" in body:
        body["sampling_params"] = {**body["sampling_params"], **fields}
        body["text"] = f"Once upon {number}"
    else:
        body |= fields
    return route, {**body, "stream": choose.random() < 0.3}


def soak(*, count: int = 100_000, clients: int = 4, minutes: float = math.inf) -> dict[str, Any]:
    """So many requests of all kinds: no 5xx, and memory that grows by at most 1 MB per thousand of them.

    The prefix cache is small, so that it is full before memory is measured. It ends sooner after so many `minutes`.
    """
    sizes: list[int] = []
    odd: list[str] = []
    with Server("tiny", "--prefix-bytes", "1000000") as server:
        over = time.monotonic() + 60 * minutes

        def work(first: int, last: int) -> None:
            client = Client(server)
            for number in range(first, last, clients):
                route, body = body_at(number)
                reply = client.send(route, body)
                if reply.status not in {200, 400}:
                    odd.append(f"request {number}: {reply.status} {reply.body[:200]!r}")
            client.close()

        every = min(1000, max(100, count // 100))
        for start in range(0, count, every):
            if time.monotonic() > over:
                count = start
                break
            threads = [threading.Thread(target=work, args=(start + i, start + every)) for i in range(clients)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            sizes.append(memory(server))
    slope = slope_of(sizes, every)
    row = {"case": "soak", "requests": count, "mb": [round(size / 1e6) for size in (sizes[0], sizes[-1])]}
    growing = [f"{slope:.2f} MB more for each 1,000 requests"] if slope > SLOPE_MB else []
    return {**row, "slope_mb_per_1000": round(slope, 3), "failures": [*odd[:5], *growing]}


def slope_of(sizes: list[int], every: int) -> float:
    """MB per thousand requests by least squares, the first fifth left out, in which caches fill."""
    kept = np.asarray(sizes[len(sizes) // 5 :], float) / 1e6
    return float(np.polyfit(np.arange(len(kept)) * every / 1000, kept, 1)[0])
