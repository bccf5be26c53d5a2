"""One thing for all tests: Ctrl-C works in them, and in the programs that they start.

A shell that starts tests in the background has it ignored, and children inherit that.
"""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
