"""A file of prompts

Each row's seed follows from its id, so a rerun or another order gives the same texts. `tirage batch` is the same as a
command.
"""

import json
import tempfile
from pathlib import Path

from tirage import SamplingParams
from tirage.cluster import generate

folder = Path(tempfile.mkdtemp())
rows = [
    {"id": "a", "prompt": "Once upon a time"},
    {"id": "b", "prompt": "The dog", "params": {"temperature": 0}},
    {"id": "c", "prompt": "One day", "params": {"top_p": 2.0}},
]
(folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

print(generate(folder / "prompts.jsonl", SamplingParams(temperature=0.8, max_tokens=8), out=folder / "results"))
for path in sorted((folder / "results").rglob("part-*.jsonl")):
    for line in path.read_text().splitlines():
        row = json.loads(line)
        print(row["id"], row.get("text") or row.get("error"))
