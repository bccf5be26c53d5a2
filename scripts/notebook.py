"""Runs docs/sampling_in_ten_minutes.ipynb and stores what its cells print and draw: `python scripts/notebook.py`.

The cells are edited in the notebook itself.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "docs" / "sampling_in_ten_minutes.ipynb"


def main() -> None:
    """Stores the outputs of a fresh run, without the times at which the cells ran."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, record_timing=False).execute()
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main()
