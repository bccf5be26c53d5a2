// A session with /v1/responses through the official `openai` client and through the ai-sdk's default provider, whose
// models speak this API; prints one line of JSON. Run by tests/test_responses_clients.py.

import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [, , folder, url] = process.argv;
const require = createRequire(join(folder, "package.json"));
const load = async (name) => import(pathToFileURL(require.resolve(name)).href);

const { default: OpenAI } = await load("openai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { generateText, streamText, stepCountIs, tool, Output } = await load("ai");
const { z } = await load("zod");

const schema = {
  type: "object",
  properties: { city: { enum: ["Paris", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};
const weather = { type: "function", name: "weather", description: "Tells it.", parameters: schema, strict: true };
const plain = { model: "tiny", input: "How old are you", max_output_tokens: 24, seed: 5 };

async function official() {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "null", maxRetries: 0 });
  const whole = await client.responses.create(plain);
  let deltas = "";
  const stream = client.responses.stream(plain);
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") deltas += event.delta;
  }
  const final = await stream.finalResponse();
  const forced = { ...plain, tools: [weather], tool_choice: { type: "function", name: "weather" } };
  const call = (await client.responses.create(forced)).output[0];
  const told = { ...plain, input: [{ role: "user", content: plain.input }, call] };
  told.input.push({ type: "function_call_output", call_id: call.call_id, output: "rain" });
  const after = await client.responses.create({ ...told, tools: [weather], tool_choice: "none" });
  let refused = "";
  try {
    await client.responses.create({ ...plain, temperature: 9 });
  } catch (error) {
    refused = `${error.constructor.name} ${error.status} ${error.param}`;
  }
  return {
    same: deltas === whole.output_text && final.output_text === whole.output_text && deltas !== "",
    usage: final.usage.total_tokens === whole.usage.total_tokens,
    city: ["Paris", "Rome"].includes(JSON.parse(call.arguments).city),
    "goes on": after.output_text !== "",
    refused,
  };
}

// The provider knows no seed for this API, so that everything is greedy.
const options = { prompt: "How old are you", temperature: 0, maxOutputTokens: 24, maxRetries: 0 };

async function sdk() {
  const model = createOpenAI({ baseURL: `${url}/v1`, apiKey: "null" })("tiny");
  const whole = await generateText({ model, ...options });
  const streamed = streamText({ model, ...options });
  let deltas = "";
  for await (const piece of streamed.textStream) deltas += piece;
  const usage = await streamed.usage;
  const person = z.object({ name: z.string().max(8), age: z.number().int().min(0).max(99) });
  const output = Output.object({ schema: person });
  const object = (await generateText({ model, ...options, maxOutputTokens: 80, output })).output;
  const partial = streamText({ model, ...options, maxOutputTokens: 80, output });
  for await (const _ of partial.partialOutputStream);
  const again = await partial.output;
  return {
    same: deltas === whole.text && deltas !== "",
    usage: usage.totalTokens === whole.usage.totalTokens && usage.totalTokens > 0,
    object: JSON.stringify(again) === JSON.stringify(object) && typeof object.name === "string",
    warnings: whole.warnings,
    tools: await loops(model),
  };
}

// Two steps: a call that is forced, then the answer to its result. What came before is named by references to its items,
// or with `store: false` sent again.
async function loops(model) {
  const found = {};
  for (const store of [true, false]) {
    const asked = [];
    const city = z.object({ city: z.enum(["Paris", "Rome"]) });
    const execute = async ({ city }) => asked.push(city) && "rain";
    const result = await generateText({
      model,
      ...options,
      maxOutputTokens: 40,
      tools: { weather: tool({ description: "Tells it.", inputSchema: city, execute }) },
      providerOptions: { openai: { store } },
      prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? { type: "tool", toolName: "weather" } : "none" }),
      stopWhen: stepCountIs(2),
    });
    found[store ? "by reference" : "by items"] = {
      city: ["Paris", "Rome"].includes(asked[0]),
      steps: result.steps.map((step) => step.finishReason),
      text: result.text !== "",
    };
  }
  return found;
}

console.log(JSON.stringify({ official: await official(), "ai-sdk": await sdk() }));
