"""llama.cpp's own server, built against the libraries that llama-cpp-python has brought along, as a process.

The wheel has libllama but no server, so its sources are compiled, one on each processor: some minutes, once for each
version.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.request import urlopen

ROOT = Path(__file__).parents[3]
PLACE = ROOT / ".engines" / f"llama-server-{version('llama-cpp-python')}"
LIBRARIES = Path(sysconfig.get_paths()["purelib"]) / "lib"
DEADLINE_S = 300
_DEFINED = ("LISTEN_BACKLOG=512", "TCP_NODELAY=1", "REQUEST_URI_MAX_LENGTH=32768")
_HEADER = """
#pragma once
#include <array>
#include <string>
struct llama_ui_asset { std::string name; const unsigned char * data; std::size_t size; std::string etag, type; };
const llama_ui_asset * llama_ui_find_asset(const std::string & name);
bool llama_ui_use_gzip();
const std::array<llama_ui_asset, 0> & llama_ui_get_assets();
"""
_NO_PAGE = """
#include "ui.h"
const llama_ui_asset * llama_ui_find_asset(const std::string &) { return nullptr; }
bool llama_ui_use_gzip() { return false; }
const std::array<llama_ui_asset, 0> & llama_ui_get_assets() {
    static const std::array<llama_ui_asset, 0> none{};
    return none;
}
"""


def binary() -> Path:
    """The server, built where it is missing: without its page, which a browser alone would ask for."""
    made = PLACE / "llama-server"
    if made.exists():
        return made
    PLACE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        source = unpacked(Path(folder))
        (PLACE / "ui.h").write_text(_HEADER)
        (PLACE / "ui.cpp").write_text(_NO_PAGE)
        files = [*(source / "tools/server").glob("*.cpp"), source / "vendor/cpp-httplib/httplib.cpp", PLACE / "ui.cpp"]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(partial(compiled, source), files))
    linked = [f"-l{name}" for name in ("llama-common", "llama", "mtmd", "ggml", "ggml-base", "ggml-cpu", "pthread")]
    place = [f"-L{LIBRARIES}", f"-Wl,-rpath,{LIBRARIES}"]
    subprocess.run(["g++", *objects, *place, *linked, "-ldl", "-o", str(made)], check=True)
    return made


def unpacked(folder: Path) -> Path:
    """The sources of llama.cpp in the package's own archive."""
    wanted = f"llama-cpp-python=={version('llama-cpp-python')}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", wanted]
    subprocess.run([*command, "--dest", str(folder)], check=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("*/vendor/llama.cpp"))


def compiled(source: Path, file: Path) -> str:
    """The object of one source; one that is there already is kept."""
    made = PLACE / f"{file.stem}.o"
    if not made.exists():
        folders = (".", "include", "ggml/include", "common", "vendor", "tools/server", "tools/mtmd")
        options = [f"-I{PLACE}", *(f"-I{source / each}" for each in folders), *(f"-DCPPHTTPLIB_{d}" for d in _DEFINED)]
        unfinished = made.with_suffix(".new")
        subprocess.run(
            ["g++", "-std=c++17", "-O1", "-w", "-fPIC", *options, "-c", str(file), "-o", str(unfinished)], check=True
        )
        unfinished.rename(made)
    return str(made)


class LlamaServer:
    """The process, ready when it is made."""

    def __init__(self, model: Path, folder: Path, *flags: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [str(binary()), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-t", "1", *flags]
        self.log = folder / "llama-server.log"
        # The environment that it was built in may be gone.
        environment = {**os.environ, "LD_LIBRARY_PATH": str(LIBRARIES)}
        self.process = subprocess.Popen(command, env=environment, stdout=self.log.open("w"), stderr=subprocess.STDOUT)
        end = time.monotonic() + DEADLINE_S
        while not self._is_ready():
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < end, self.log.read_text()[-2000:]
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/health") as answer:
                return json.load(answer) == {"status": "ok"}
        except OSError:
            return False

    def settings(self, body: dict[str, Any]) -> dict[str, Any]:
        """What the server says that it generates with."""
        data = json.dumps({**body, "n_predict": 0}).encode()
        with urlopen(f"{self.url}/completion", data) as answer:
            return json.load(answer)["generation_settings"]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)
