// A session with a server through Anthropic's client for JavaScript; prints one line of JSON.
// Run by tests/test_messages_clients.py: node messages_session.mjs FOLDER_OF_PACKAGES URL

import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [folder, baseURL] = process.argv.slice(2);
const resolve = createRequire(path.join(path.resolve(folder), "package.json")).resolve;
const { Anthropic } = await import(pathToFileURL(resolve("@anthropic-ai/sdk")));

const client = new Anthropic({ baseURL, apiKey: "null", maxRetries: 0 });
const messages = [{ role: "user", content: "How old are you" }];
const asked = { model: "tiny", max_tokens: 12, messages, seed: 5 };
const schema = {
  type: "object",
  properties: { city: { enum: ["Paris", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};

const whole = await client.messages.create(asked);
const events = [];
const stream = client.messages.stream(asked);
stream.on("streamEvent", (event) => events.push(event.type));
const streamed = await stream.finalMessage();

const forced = {
  ...asked,
  max_tokens: 60,
  close_grammar: true,
  tools: [{ name: "weather", input_schema: schema }],
  tool_choice: { type: "tool", name: "weather" },
};
const call = await client.messages.create(forced);
const streamedCall = await client.messages.stream(forced).finalMessage();

async function failure(promise) {
  try {
    await promise;
    return "none";
  } catch (error) {
    return `${error.constructor.name} ${error.status} ${error.error?.error?.type}`;
  }
}

console.log(JSON.stringify({
  whole: whole.content[0].text.length > 0 && whole.stop_reason === "max_tokens",
  stream: streamed.content[0].text === whole.content[0].text && streamed.usage.output_tokens === 12,
  events: events.filter((kind) => kind !== "content_block_delta"),
  tools: {
    reason: call.stop_reason,
    city: ["Paris", "Rome"].includes(call.content[0].input.city),
    same: streamedCall.content[0].input.city === call.content[0].input.city,
  },
  count: (await client.messages.countTokens({ model: "tiny", messages })).input_tokens,
  errors: [
    await failure(client.messages.create({ ...asked, temperature: 9 })),
    await failure(client.messages.batches.retrieve("none")),
  ],
}));
