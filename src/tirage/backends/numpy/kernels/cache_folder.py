"""Whether the folder of compiled kernels can be trusted: Numba keeps pickles, and whoever writes one runs code."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[3]


def distrusted(folder: Path) -> str | None:
    """Why a folder and its files must not be read, because other users can write to them; None for a safe one.

    Above the folder every folder counts too, up to the package, whose writers could change its code as well.
    """
    if not hasattr(os, "geteuid"):
        return None
    folder = folder.resolve()
    for path in (folder, *folder.parents):
        if path == _PACKAGE:
            break
        if path.exists() and (reason := written_by_others(path, sticky=path != folder)):
            return reason
    if not folder.exists():
        return None
    return next((reason for path in folder.iterdir() if (reason := written_by_others(path, sticky=False))), None)


def written_by_others(path: Path, *, sticky: bool) -> str | None:
    """Who besides this user and root can change what a path names; None for nobody.

    `sticky` says that the sticky bit protects what is in the folder from other users.
    """
    status = os.lstat(path)
    if status.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to another user"
    if sticky and status.st_mode & stat.S_ISVTX:
        return None
    if status.st_mode & stat.S_IWOTH and not stat.S_ISLNK(status.st_mode):
        return f"everyone can write to {path}"
    if status.st_mode & stat.S_IWGRP and status.st_gid not in (0, os.getegid()) and not stat.S_ISLNK(status.st_mode):
        return f"a group can write to {path}"
    return None
