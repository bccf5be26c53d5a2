"""Rewrites tests/data/tool_schemas: the tools that published MCP servers offer, and what zod makes of its types.

    npm install --ignore-scripts $(python scripts/tool_schemas.py --packages)
    python scripts/tool_schemas.py FOLDER_OF_THE_INSTALLATION

Each server is started over stdio, with made-up credentials where it wants any, and asked for `tools/list`. No tool is
called. The files hold the schemas as they came; descriptions are cut to their first 80 characters.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[1] / "tests" / "data" / "tool_schemas"
_KEY = "none"
SERVERS: dict[str, tuple[str, list[str], dict[str, str]]] = {
    "filesystem": ("@modelcontextprotocol/server-filesystem", ["."], {}),
    "memory": ("@modelcontextprotocol/server-memory", [], {}),
    "everything": ("@modelcontextprotocol/server-everything", ["stdio"], {}),
    "sequential_thinking": ("@modelcontextprotocol/server-sequential-thinking", [], {}),
    "github": ("@modelcontextprotocol/server-github", [], {"GITHUB_PERSONAL_ACCESS_TOKEN": _KEY}),
    "gitlab": ("@modelcontextprotocol/server-gitlab", [], {"GITLAB_PERSONAL_ACCESS_TOKEN": _KEY}),
    "slack": ("@modelcontextprotocol/server-slack", [], {"SLACK_BOT_TOKEN": _KEY, "SLACK_TEAM_ID": _KEY}),
    "postgres": ("@modelcontextprotocol/server-postgres", ["postgresql://localhost/none"], {}),
    "puppeteer": ("@modelcontextprotocol/server-puppeteer", [], {}),
    "brave_search": ("@modelcontextprotocol/server-brave-search", [], {"BRAVE_API_KEY": _KEY}),
    "google_maps": ("@modelcontextprotocol/server-google-maps", [], {"GOOGLE_MAPS_API_KEY": _KEY}),
    "playwright": ("@playwright/mcp", [], {}),
    "context7": ("@upstash/context7-mcp", [], {}),
    "firecrawl": ("firecrawl-mcp", [], {"FIRECRAWL_API_KEY": _KEY}),
    "notion": ("@notionhq/notion-mcp-server", [], {"NOTION_TOKEN": _KEY}),
    "tavily": ("tavily-mcp", [], {"TAVILY_API_KEY": _KEY}),
}
"""Each server's package, its arguments and its environment."""
ZOD = r"""
const { z } = require("zod");
const { zodToJsonSchema } = require("zod-to-json-schema");
const z3 = require("zod/v3").z;
const types = (z, tuple) => ({
  person: z.object({
    name: z.string().min(1).max(40), age: z.number().int().min(0).max(150), email: z.string().email().optional() }),
  union: z.object({ value: z.union([z.string(), z.number(), z.null()]) }),
  tagged: z.object({ shape: z.discriminatedUnion("kind", [
    z.object({ kind: z.literal("circle"), radius: z.number().positive() }),
    z.object({ kind: z.literal("box"), width: z.number(), height: z.number() }) ]) }),
  lists: z.object({ tags: z.array(z.enum(["a", "b", "c"])).min(1).max(3), pair: tuple }),
  record: z.object({ headers: z.record(z.string(), z.string()), extra: z.record(z.string(), z.any()).optional() }),
  defaults: z.object({
    limit: z.number().int().default(10), deep: z.boolean().default(false), note: z.string().nullable() }),
  formats: z.object({
    id: z.string().uuid(), url: z.string().url(), at: z.string().datetime(), address: z.string().ip?.() ?? z.ipv4() }),
  intersection: z.object({ both: z.intersection(z.object({ a: z.string() }), z.object({ b: z.number() })) }),
  strict: z.object({ query: z.string() }).strict(),
  loose: z.object({ query: z.string() }).passthrough(),
  pattern: z.object({ code: z.string().regex(/^[A-Z]{2}-[0-9]{3}$/) }),
  empty: z.object({}),
});
const found = {};
for (const [name, type] of Object.entries(types(z, z.tuple([z.number(), z.string()])))) {
  found[`zod4_${name}`] = z.toJSONSchema(type);
}
for (const [name, type] of Object.entries(types(z3, z3.tuple([z3.number(), z3.string()])))) {
  found[`zod3_${name}`] = zodToJsonSchema(type);
  found[`zod3_openai_${name}`] = zodToJsonSchema(type, { target: "openAi" });
}
const tools = Object.entries(found).map(([name, inputSchema]) => ({ name, inputSchema }));
const about = (name) => JSON.parse(require("fs").readFileSync(`node_modules/${name}/package.json`));
console.log(JSON.stringify({ tools, zod: about("zod"), own: about("zod-to-json-schema") }));
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="where node_modules is")
    parser.add_argument("--packages", action="store_true", help="print the packages to install")
    asked = parser.parse_args()
    if asked.packages or asked.folder is None:
        print(*(package for package, _, _ in SERVERS.values()), "zod", "zod-to-json-schema")
        return
    TARGET.mkdir(parents=True, exist_ok=True)
    for name in SERVERS:
        write(name, asked.folder)
    write_zod(asked.folder)


def write(name: str, folder: Path) -> None:
    """Writes the tools of one server; says so where it gives none."""
    package, arguments, environment = SERVERS[name]
    home = folder / "node_modules" / package
    about = json.loads((home / "package.json").read_text(encoding="utf-8"))
    script = about["bin"] if isinstance(about["bin"], str) else next(iter(about["bin"].values()))
    try:
        tools = list_tools(["node", str(home / script), *arguments], environment)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return
    licence = about.get("license", "")
    if licence.startswith("SEE"):
        licence = "MIT, in transition to Apache-2.0 (github.com/modelcontextprotocol/servers/blob/main/LICENSE)"
    save(name, f"{about['name']} {about['version']}", licence, tools)


def list_tools(command: list[str], environment: dict[str, str]) -> list[dict[str, Any]]:
    """The answer of a server to `tools/list`."""
    started = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "tools", "version": "1"}}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": started},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}},
    ]
    with tempfile.TemporaryDirectory() as place:
        process = subprocess.Popen(
            command, cwd=place, env={"PATH": os.environ["PATH"], "HOME": place, **environment},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for message in messages:
                process.stdin.write(json.dumps(message) + "\n")
                process.stdin.flush()
            return answer_of(process.stdout)
        finally:
            process.kill()
            process.wait()


def answer_of(lines: Any) -> list[dict[str, Any]]:
    """The tools in the answer with our id; ValueError when the server ends without it."""
    for line in lines:
        if not line.startswith("{"):
            continue
        message = json.loads(line)
        if message.get("id") == 2:
            if "error" in message:
                raise ValueError(message["error"])
            return message["result"]["tools"]
    raise ValueError("the server ended without an answer")


def write_zod(folder: Path) -> None:
    """Writes what zod's own conversion and zod-to-json-schema make of the types above."""
    made = subprocess.run(["node", "-e", ZOD], cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    found = json.loads(made.stdout)
    source = ", ".join(f"{one['name']} {one['version']}" for one in (found["zod"], found["own"]))
    save("zod", source, f"{found['zod']['license']}, {found['own']['license']}", found["tools"])


def save(name: str, source: str, licence: str, tools: list[dict[str, Any]]) -> None:
    """Writes one file."""
    kept = [{"name": tool["name"], "inputSchema": shortened(tool["inputSchema"])} for tool in tools]
    lines = ",\n".join("  " + json.dumps(tool, ensure_ascii=False) for tool in kept)
    head = json.dumps({"source": source, "licence": licence})[:-1]
    (TARGET / f"{name}.json").write_text(f'{head}, "tools": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{name}: {len(kept)} tools of {source}")


def shortened(schema: Any) -> Any:
    """The schema with long descriptions cut."""
    if isinstance(schema, list):
        return [shortened(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value[:80] if key == "description" and isinstance(value, str) else shortened(value)
        for key, value in schema.items()
    }


if __name__ == "__main__":
    main()
