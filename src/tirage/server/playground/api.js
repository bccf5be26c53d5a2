// Requests to this server: JSON answers, event streams, and errors in the server's own words.

let key = null;
let askForKey = null;

/** What went wrong, in words for the page; `param` is the field of the request that the server blames. */
export class ServerError extends Error {
  constructor(message, { status = 0, param = null, code = null } = {}) {
    super(message);
    Object.assign(this, { status, param, code });
  }
}

/** `ask(problem)` gives the key that a person has typed; it is called where the server wants one. */
export function onKeyWanted(ask) {
  askForKey = ask;
}

/** Whether requests carry a key. */
export function hasKey() {
  return key !== null;
}

export async function getJson(path) {
  return (await send(path, { method: "GET" })).json();
}

export async function postJson(path, body, signal) {
  return (await send(path, posted(body, signal))).json();
}

/** The events of a stream, parsed; throws ServerError where it ends too early. */
export async function* postEvents(path, body, signal) {
  const response = await send(path, posted(body, signal));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await readPart(reader);
      if (done) throw cut();
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const data = block.replace(/^data: /, "");
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new ServerError(event.error.message, { param: event.error.param });
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function posted(body, signal) {
  const headers = { "content-type": "application/json" };
  return { method: "POST", headers, body: JSON.stringify(body), signal };
}

async function readPart(reader) {
  try {
    return await reader.read();
  } catch (error) {
    throw error.name === "AbortError" ? error : cut();
  }
}

function cut() {
  return new ServerError("The stream was cut before the text ended. What had come is kept.");
}

async function send(path, options) {
  for (;;) {
    const used = key;
    const response = await attempt(path, options);
    if (response.ok) return response;
    const error = await errorOf(response);
    if (response.status !== 401 || askForKey === null) throw error;
    // Another request may have got the key meanwhile.
    if (used === key) key = await askForKey(used === null ? "" : error.message);
  }
}

async function attempt(path, options) {
  const headers = { ...options.headers, ...(key === null ? {} : { authorization: `Bearer ${key}` }) };
  try {
    return await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(`The server at ${location.host} does not answer. Start it again, then try once more.`);
  }
}

async function errorOf(response) {
  const { status } = response;
  try {
    const { message, param, code } = (await response.json()).error;
    return new ServerError(message, { status, param, code });
  } catch {
    return new ServerError(`The server answered ${status} ${response.statusText}.`, { status });
  }
}
