"""vLLM's OpenAI server on a small model, as a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from llama_folder import PROMPTS, write_folder

DEADLINE_S = 600


class Server:
    """The process; the processor is named besides being found by its entry point."""

    def __init__(self, folder: Path, *, name: str = "small") -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model"]
        command += [
            str(write_folder(folder)),
            "--port",
            str(self.port),
            "--dtype",
            "float32",
            "--enforce-eager",
            "--max-model-len",
            "256",
        ]
        command += ["--max-num-seqs", "16", "--served-model-name", name, "--logits-processors"]
        command += ["tirage.integrations.vllm:TirageLogitsProcessor"]
        self.log = folder / "log"
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        self.process = subprocess.Popen(command, env=environment, stdout=self.log.open("w"), stderr=subprocess.STDOUT)

    def wait(self) -> None:
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                urlopen(f"http://127.0.0.1:{self.port}/health").close()
                return
            except OSError:
                time.sleep(0.5)
        raise AssertionError(self.log.read_text()[-2000:])

    def post(self, route: str, **body: Any) -> Any:
        given = {"model": "small", "max_tokens": 8, "temperature": 0, "ignore_eos": True, **body}
        url = f"http://127.0.0.1:{self.port}/v1/{route}"
        request = Request(url, json.dumps(given).encode(), {"Content-Type": "application/json"})
        with urlopen(request) as answer:
            return answer.read().decode() if body.get("stream") else json.load(answer)

    def text(self, fields: Any, prompt: str = PROMPTS[0], **body: Any) -> str:
        answer = self.post("completions", prompt=prompt, vllm_xargs={"tirage": json.dumps(fields)}, **body)
        return answer["choices"][0]["text"]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)
