"""Compares every preset with the engine that it is named after: the engine's own code, from its published package.

`rows.py` makes the rows, `tests/peers/adapters` asks an engine for their laws in an environment of its own,
`classify.py` says what a difference is, `page.py` writes docs/divergence.md, and `__main__.py` holds them together.
"""
