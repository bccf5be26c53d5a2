"""The folder of compiled kernels: one that others can write to is not read, for Numba keeps pickles there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from numba.core import config

from tirage.backends.numpy import kernels
from tirage.backends.numpy.kernels import parts, rows
from tirage.backends.numpy.kernels.cache_folder import distrusted, written_by_others


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "cache"
    made.mkdir(mode=0o755)
    (made / "kernel.nbi").touch(mode=0o644)
    return made


def test_a_folder_of_ones_own_is_trusted(folder: Path) -> None:
    assert distrusted(folder) is None


def test_the_package_is_trusted_as_its_code_is() -> None:
    assert distrusted(Path(rows.__file__).parent) is None


WRONG: dict[str, tuple[Callable[[Path], None], str]] = {
    "the folder": (lambda folder: folder.chmod(0o777), r"^everyone can write to .*cache$"),
    "a sticky folder": (lambda folder: folder.chmod(0o1777), r"^everyone can write to .*cache$"),
    "a file": (lambda folder: (folder / "kernel.nbi").chmod(0o666), r"^everyone can write to .*kernel\.nbi$"),
    "a folder above": (lambda folder: folder.parent.chmod(0o777), r"^everyone can write to "),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_everyone_can_write_to_is_not_trusted(folder: Path, name: str) -> None:
    change, message = WRONG[name]
    change(folder)
    reason = distrusted(folder)
    assert reason is not None
    assert re.search(message, reason)


def test_another_users_folder_is_not_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid() or 4711
    if not os.geteuid():
        os.chown(folder, owner, -1)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert written_by_others(folder, sticky=False) == f"{folder} belongs to another user"


def test_kernels_are_compiled_without_a_cache_that_others_can_write_to(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(folder))
    monkeypatch.setattr(rows, "_told", [])
    assert rows.dispatcher().stats.cache_path is not None
    folder.chmod(0o777)
    assert rows.dispatcher().stats.cache_path is None
    assert "set NUMBA_CACHE_DIR to a folder that you, and nobody else, can write to" in caplog.text


def test_an_unknown_release_of_numba_compiles_functions_as_it_does_by_itself() -> None:
    assert set(parts.options("0.61.2")) == set(parts.options("0.68.1")) == {"pipeline_class"}
    assert parts.options("0.60.9") == parts.options("0.69.0rc1") == parts.options("1.0.0") == {}
    # The one that is installed shall be known.
    assert parts.options()


LOADED = """
import sys, tirage
from tirage.backends.numpy import kernels
tirage.warmup()
print(kernels.ready(), kernels.held_ready(), kernels.compiling(), "numba.np.linalg" in sys.modules)
"""


def test_kept_kernels_are_loaded_without_what_would_compile_them() -> None:
    kernels.wait()
    ended = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["True", "True", "False", "False"]
