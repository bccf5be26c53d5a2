// The same request for a terminal and for programs.

import { chatMessages } from "./settings.js";

/** The forms of a request: name, and the text for `{state, params, url, model, keyed}`. */
export const FORMS = [
  ["curl", curl],
  ["Python, openai", openai],
  ["Python, tirage", tirage],
  ["SGLang's /generate", sglang],
];

const OPENAI_OWN = new Set(["temperature", "top_p", "frequency_penalty", "presence_penalty", "seed"]);
const CONSTRAINTS = { json_schema: "json", regex: "regex", ebnf: "grammar" };

/** The body of /v1/completions or /v1/chat/completions; their presets' defaults differ, so the preset is named. */
export function openaiBody({ state, params, model }) {
  const { max_new_tokens: maxTokens, json_schema: schema, ...rest } = params;
  const prompt = state.mode === "chat" ? { messages: chatMessages(state) } : { prompt: state.prompt };
  const format = { type: "json_schema", json_schema: { name: "answer", schema: schema && JSON.parse(schema) } };
  const common = { model, ...prompt, max_tokens: maxTokens, temperature: 1, semantics: "sglang", ...rest };
  return { ...common, ...(schema === undefined ? {} : { response_format: format }) };
}

function path({ mode }) {
  return mode === "chat" ? "v1/chat/completions" : "v1/completions";
}

function curl(request) {
  const key = request.keyed ? ' \\\n  -H "Authorization: Bearer $TIRAGE_API_KEY"' : "";
  const body = JSON.stringify(openaiBody(request), null, 2).replaceAll("'", "'\\''");
  return `curl ${request.url}${path(request.state)} \\\n  -H "Content-Type: application/json"${key} \\\n  -d '${body}'`;
}

function openai(request) {
  const body = openaiBody(request);
  const own = ["model", "prompt", "messages", "max_tokens", ...(request.state.mode === "chat" ? ["response_format"] : [])];
  const known = Object.entries(body).filter(([name]) => own.includes(name) || OPENAI_OWN.has(name));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => !own.includes(name) && !OPENAI_OWN.has(name)));
  const call = request.state.mode === "chat" ? "chat.completions" : "completions";
  const text = request.state.mode === "chat" ? "message.content" : "text";
  const lines = [...known.map(([name, value]) => `    ${name}=${python(value)},`), `    extra_body=${python(extra)},`];
  const key = request.keyed ? 'os.environ["TIRAGE_API_KEY"]' : '"none"';
  return `${request.keyed ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url="${request.url}v1", api_key=${key})
answer = client.${call}.create(
${lines.join("\n")}
)
print(answer.choices[0].${text})`;
}

function tirage({ state, params, model }) {
  const { max_new_tokens: maxTokens, json_schema, regex, ebnf, ...rest } = params;
  const guided = Object.entries({ json_schema, regex, ebnf }).filter(([, value]) => value !== undefined);
  const values = { max_tokens: maxTokens, semantics: "sglang", ...rest };
  const lines = Object.entries(values).map(([name, value]) => `    ${name}=${python(value)},`);
  const made = guided.map(([name, text]) => `    guided_decoding=GuidedDecodingParams(${CONSTRAINTS[name]}=${python(text)}),`);
  const names = ["LLM", "SamplingParams", ...(made.length > 0 ? ["GuidedDecodingParams"] : [])].sort();
  const call = state.mode === "chat" ? `chat(${python(chatMessages(state))}, params).text` : `generate(${python(state.prompt)}, params)[0].text`;
  return `from tirage import ${names.join(", ")}

llm = LLM(${python(model)})  # the model's name, or its folder
params = SamplingParams(
${[...lines, ...made].join("\n")}
)
print(llm.${call})`;
}

function sglang({ state, params, url, keyed, inputIds }) {
  const prompt = state.mode === "chat" ? { input_ids: inputIds ?? [] } : { text: state.prompt };
  const headers = keyed ? ', headers={"Authorization": f"Bearer {os.environ[\'TIRAGE_API_KEY\']}"}' : "";
  return `${keyed ? "import os\n\n" : ""}import requests

body = ${python({ ...prompt, sampling_params: params })}
print(requests.post("${url}generate", json=body${headers}).json()["text"])`;
}

/** A value as Python writes it. */
export function python(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, each]) => `${python(name)}: ${python(each)}`).join(", ")}}`;
  }
  // JSON's escapes are Python's too, but for half characters, which no text of a page has.
  return JSON.stringify(value);
}
