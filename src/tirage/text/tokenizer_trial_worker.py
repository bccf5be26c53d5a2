"""A child process that reads a tokenizer.json on trial: `PATH SECONDS BYTES`, of processor time and more memory.

It writes one line of JSON with the `error`, which is empty when there is none. One that takes too long is ended by an
alarm, one that needs too much memory by a resource limit. The file runs as a script.
"""

from __future__ import annotations

import json
import signal
import sys

from tokenizers import Tokenizer

from tirage.workers.child_script import limit_memory


def main(path: str, seconds: str, growth: str) -> None:
    """Reads the file under the limits, and says what is wrong with it."""
    limit_memory(int(growth))
    signal.setitimer(signal.ITIMER_PROF, float(seconds))
    error = ""
    try:
        Tokenizer.from_file(path)
    except BaseException as wrong:  # the library raises bare Exception, and panics in what is none
        error = str(wrong) or type(wrong).__name__
    sys.stdout.write(json.dumps({"error": error}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
