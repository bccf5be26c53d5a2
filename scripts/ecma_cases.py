"""Rewrites tests/data/ecma_patterns.json: in which of some texts Node finds each pattern, with the flag u if it can.

python scripts/ecma_cases.py        # needs `node`; the file says which version made it
"""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

FILE = Path(__file__).parents[1] / "tests" / "data" / "ecma_patterns.json"
PATTERNS = r"""
^a
a$
a
^$
^a|b$
(^a|b)c
(?:^|,)x(?:,|$)
^(?!.*\.\.)[a-z.]+$
^(?=.*[A-Z])(?=.*[0-9]).{3,}$
\bcat\b
^\w+\b
\Bx\B
^((?!foo).)*$
^(?:(?=[a-c]).)+$
(?:a|b$)*c?$
(?:^a)*b
(^a?)*b$
(\bfoo\b ?)+$
^(?:\b\w+\b ?)*$
[[:alpha:]]
^[[:alpha:]]$
^\S$
^\s$
^[^"\\]+$
^[^<>"]+$
^[^\\/:*?"<>|]+$
^(http)://[^ "]+$
\p{Letter}cat
^\p{Lu}$
^\P{L}+$
^[\w-]+$
a{2,3}$
^a{,2}$
^a{2}b{1,}$
^[^]$
\cC
^\-$
^[\-a]+$
^\01$
^(?:a(?=b)|ab)c?
(?=a)b
x*$
(?!^)a
(?!$)
^(?!x*$)[xy]*$
(?=a$)
a(?!b)
(a|\b)+x
^.$
^[\s\S]*$
^(?<name>a)+$
^\u0061\x62\u{63}$
^[\u{1f400}-\u{1f4ff}]$
^\ud83d\udc32$
^(?:a|ab)(?:c|bcd)(?:d*)$
^a*?b$
^(a+)+$
^\d{2,4}-\d$
(?:a$|^b)(?:$|c)
^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$
^\$?a\.b\/c$
\/\*.*\*\/
^[a-z]]$
^}{$
^\8\9$
^[\b]$
^(?:|a)b$
"""
PIECES = [
    *"abcxyfo ,.A1-_\"\\/\n<>:$]}{@'",
    "é",
    "cat",
    "foo",
    "ab",
    "\ufeff",
    "\u00a0",
    "🐲",
    "\x03",
    "\x01",
    "\b",
    "http://",
    "/*",
    "*/",
]
FIXED = [
    "",
    "abc",
    "aaa",
    "ab",
    "bcd",
    "b@a.co",
    "a.b@a-b.com",
    "x,x",
    "12-3",
    "a.b/c",
    "$a.b/c",
    "89",
    "}{",
    "a]",
    "a{,2}",
    "/* a */",
]
TEXTS = 40
SCRIPT = """
const {patterns, texts} = JSON.parse(require('fs').readFileSync(0));
const made = p => { try { return new RegExp(p, 'u') } catch (e) { return new RegExp(p) } };
const found = patterns.map((p, i) => { const r = made(p); return texts[i].filter(t => r.test(t)) });
console.log(JSON.stringify({node: process.version, found}));
"""


def main() -> None:
    """Asks Node and writes the file."""
    rng = random.Random(0)
    patterns = PATTERNS.strip("\n").split("\n")
    texts = [
        list(dict.fromkeys([*FIXED, *("".join(rng.choices(PIECES, k=rng.randint(1, 5))) for _ in range(TEXTS))]))
        for _ in patterns
    ]
    question = json.dumps({"patterns": patterns, "texts": texts})
    done = subprocess.run(["node", "-e", SCRIPT], input=question, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    cases = [
        {"pattern": pattern, "found": found, "missing": [text for text in tried if text not in found]}
        for pattern, tried, found in zip(patterns, texts, answer["found"], strict=True)
    ]
    lines = ",\n".join(json.dumps(case) for case in cases)
    FILE.write_text(f'{{"node": "{answer["node"]}", "cases": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
