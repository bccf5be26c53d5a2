"""The id of a request, which its answer and the log tell."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

ID_HEADER = b"x-request-id"
_ID = re.compile(rb"[\w.:-]{1,128}", re.ASCII)


def request_id(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """The client's own id of its request if it is a plain word, else a random one."""
    given = [value for name, value in headers if name == ID_HEADER]
    if len(given) == 1 and _ID.fullmatch(given[0]):
        return given[0].decode("ascii")
    return secrets.token_hex(16)
