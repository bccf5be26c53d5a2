"""Is the playground quick? Load time, the redraw of a distribution of 128k tokens, frames while a text streams.

A table of logits with 128,256 tokens and 50 ms a step, in a server of its own, before a headless Chromium.
`python -m benchmarks.playground [--rounds 9]` needs Playwright and a Chromium on the path.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tirage
from benchmarks.harness import logits, save

VOCAB, STEP_S, ROWS = 128_256, 0.05, 16
REDRAWS = 30
STREAM_S = 6.0

REDRAW = """async (count) => {
  const slider = document.getElementById("range-top_p"), table = document.getElementById("alternatives");
  const found = [];
  for (let at = 0; at < count; at += 1) {
    const began = performance.now();
    const drawn = new Promise((resolve) => {
      const seen = new MutationObserver(() => { seen.disconnect(); requestAnimationFrame(resolve); });
      seen.observe(table, { childList: true });
    });
    slider.value = 0.5 + 0.01 * at;
    slider.dispatchEvent(new Event("input"));
    await drawn;
    found.push(performance.now() - began);
  }
  return found;
}"""
FRAMES = """async (seconds) => {
  const found = [];
  let last = performance.now();
  const end = last + 1000 * seconds;
  while (last < end) {
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    found.push(now - last);
    last = now;
  }
  return found;
}"""


class WideTable:
    """A model of 128k tokens whose logits depend on the last id alone."""

    vocab_size, max_length = VOCAB, 4096

    def __init__(self) -> None:
        self._rows = logits("medium", ROWS, VOCAB)

    def prefill(self, token_ids: Sequence[int]) -> tuple[NDArray[np.float32], Any]:
        return self._rows[token_ids[-1] % ROWS], None

    def decode(self, token_ids: Sequence[int], caches: Sequence[Any]) -> NDArray[np.float32]:
        del caches
        time.sleep(STEP_S)
        return self._rows[np.asarray(token_ids) % ROWS]

    def fork(self, cache: Any) -> Any:
        return cache

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        return self._rows[np.asarray(token_ids) % ROWS]


class Words:
    """A tokenizer whose words are the numbers of their ids."""

    def encode(self, text: str) -> list[int]:
        return [1 + ord(letter) % 64 for letter in text] or [1]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(f" w{i}" for i in ids)


def serve() -> None:
    """Serves the table on a free port, which the first line of stdout says."""
    import uvicorn

    from tirage.server import create_app

    listener = socket.create_server(("127.0.0.1", 0))
    tirage.warmup()
    app = create_app(tirage.LLM(WideTable(), tokenizer=Words()))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False)).run(sockets=[listener])


def spent_ms(pid: int) -> float:
    """Processor milliseconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(url: str, pid: int, rounds: int) -> list[dict[str, Any]]:
    """The rows of the result."""
    from playwright.sync_api import sync_playwright  # pyright: ignore[reportMissingImports]

    names = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
    path = os.environ.get("TIRAGE_TEST_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        loads = [loaded(browser, url) for _ in range(rounds + 1)][1:]
        page = browser.new_page()
        page.goto(url)
        page.wait_for_selector("#alternatives tbody tr")
        before_ms = spent_ms(pid)
        redraws = page.evaluate(REDRAW, REDRAWS)
        server_ms = round((spent_ms(pid) - before_ms) / REDRAWS, 1)
        page.fill("#max-tokens", "1000")
        page.click("#generate")
        page.wait_for_selector(".tokens > span:nth-child(5)")
        before = page.locator(".tokens > span").count()
        frames = page.evaluate(FRAMES, STREAM_S)
        tokens = page.locator(".tokens > span").count() - before
        browser.close()
    return [
        row("explain alone, V = 128k, processor ms", alone()),
        row("load event of the page, no cache, ms", [load for load, _ in loads]),
        row("first distribution on the page, ms", [first for _, first in loads]),
        {**row("slider to redrawn distribution, V = 128k, ms", redraws), "processor_ms_of_the_server": server_ms},
        {
            **row("frame while a text streams, ms", frames),
            "frames_per_s": round(len(frames) / (sum(frames) / 1000), 1),
            "tokens_per_s": round(tokens / STREAM_S, 1),
            "over_25_ms": sum(each > 25 for each in frames),
            "frames": len(frames),
        },
    ]


def alone() -> list[float]:
    """Processor milliseconds of one explanation in this process, without server and page."""
    x, found = logits("medium", 1, VOCAB)[0], []
    params = tirage.SamplingParams(temperature=0.8, top_p=0.7, seed=1, semantics="sglang")
    for _ in range(REDRAWS):
        began = time.thread_time()
        tirage.explain(x, params, history=[([1, 2, 3], [4])], top=20)
        found.append((time.thread_time() - began) * 1000)
    return found


def loaded(browser: Any, url: str) -> tuple[float, float]:
    """Milliseconds to the load event, and to the first distribution, of a page without a cache."""
    context = browser.new_context()
    page, began = context.new_page(), time.perf_counter()
    page.goto(url)
    page.wait_for_selector("#alternatives tbody tr")
    first = (time.perf_counter() - began) * 1000
    load = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    context.close()
    return load, first


def row(what: str, values: Sequence[float]) -> dict[str, Any]:
    """The median and the ninetieth percentile of some milliseconds."""
    p90 = statistics.quantiles(values, n=10)[8]
    return {"what": what, "median": round(statistics.median(values), 1), "p90": round(p90, 1)}


def load_average() -> str:
    """How busy the machine was: processes that wanted a processor in the last minute, and how many there are."""
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--serve", action="store_true", help="be the server")
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    command = [sys.executable, "-m", "benchmarks.playground", "--serve"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/"
        time.sleep(2)
        rows = measure(url, server.pid, options.rounds)
    finally:
        server.terminate()
        server.wait()
    save(
        "playground",
        rows,
        notes="wall time in a headless Chromium without a GPU, server on the same machine; load average "
        + load_average(),
    )


if __name__ == "__main__":
    main()
