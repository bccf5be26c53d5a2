// The state of the page, and the parameters of a request that follow from it.

/** The sliders; at `off` a parameter changes nothing, and is not sent. */
export const SLIDERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05, off: 1 },
  { name: "top_k", label: "Top-k", min: 0, max: 200, step: 1, off: 0 },
  { name: "top_p", label: "Top-p", min: 0.01, max: 1, step: 0.01, off: 1 },
  { name: "min_p", label: "Min-p", min: 0, max: 1, step: 0.01, off: 0 },
  { name: "repetition_penalty", label: "Repetition penalty", min: 1, max: 2, step: 0.01, off: 1 },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.05, off: 0 },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.05, off: 0 },
];

export const CONSTRAINTS = ["json_schema", "regex", "ebnf"];

/** Something typed that is no valid setting; `field` is "constraint" or "more". */
export class SettingsError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

/** The settings of one side. `seed` null: a fresh one for every text. `semantics` "": the server's default. */
export function newSide() {
  const sliders = Object.fromEntries(SLIDERS.map(({ name, off }) => [name, off]));
  return { ...sliders, temperature: 0.8, top_p: 0.95, seed: 7, semantics: "" };
}

export function newState() {
  return {
    mode: "text",
    prompt: "Once upon a time",
    system: "",
    messages: [],
    compare: false,
    sides: [newSide(), { ...newSide(), seed: 8 }],
    maxTokens: 100,
    constraintKind: "",
    constraint: "",
    more: "",
  };
}

/** The messages of the chat, with what is typed now as the last. */
export function chatMessages(state) {
  const system = state.system === "" ? [] : [{ role: "system", content: state.system }];
  return [...system, ...state.messages, { role: "user", content: state.prompt }];
}

/** The `sampling_params` of /generate and /explain for one side; throws SettingsError for what is no JSON. */
export function samplingParams(state, side, seed = state.sides[side].seed) {
  const own = state.sides[side];
  const found = { max_new_tokens: state.maxTokens };
  for (const { name, off } of SLIDERS) if (own[name] !== off) found[name] = own[name];
  if (seed !== null) found.seed = seed;
  if (own.semantics !== "") found.semantics = own.semantics;
  return { ...found, ...constraintParams(state), ...furtherParams(state) };
}

function constraintParams({ constraintKind, constraint }) {
  if (constraintKind === "") return {};
  if (constraint.trim() === "") throw new SettingsError("constraint", "Type the constraint, or choose none.");
  if (constraintKind === "json_schema") parsed("constraint", constraint);
  return { [constraintKind]: constraint };
}

function furtherParams({ more }) {
  if (more.trim() === "") return {};
  const found = parsed("more", more);
  if (found === null || typeof found !== "object" || Array.isArray(found)) {
    throw new SettingsError("more", 'Type an object, such as {"stop": ["."]}.');
  }
  return found;
}

function parsed(field, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SettingsError(field, `This is no JSON yet: ${error.message}`);
  }
}

/** A seed for a text whose settings name none. */
export function freshSeed() {
  return crypto.getRandomValues(new Uint32Array(1))[0];
}

// --- the link -------------------------------------------------------------------------------------------------------

/** The state as the fragment of a link, which browsers do not send to servers. The key is no part of the state. */
export function toFragment(state) {
  const bytes = new TextEncoder().encode(JSON.stringify(state));
  const letters = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return `#s=${btoa(letters).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
}

/** The state in a fragment; null where it holds none. What is of another type than it should be is left out. */
export function fromFragment(fragment) {
  if (!fragment.startsWith("#s=")) return null;
  const letters = atob(fragment.slice(3).replaceAll("-", "+").replaceAll("_", "/"));
  const given = JSON.parse(new TextDecoder().decode(Uint8Array.from(letters, (letter) => letter.charCodeAt(0))));
  const state = merged(newState(), given);
  state.mode = state.mode === "chat" ? "chat" : "text";
  state.constraintKind = CONSTRAINTS.includes(state.constraintKind) ? state.constraintKind : "";
  state.messages = (Array.isArray(given.messages) ? given.messages : []).filter(isMessage).map(plainMessage);
  state.sides = state.sides.map((side, index) => readSide(side, given.sides?.[index]));
  return state;
}

function merged(defaults, given) {
  const known = Object.entries(defaults).filter(([name]) => typeof given?.[name] === typeof defaults[name]);
  return { ...defaults, ...Object.fromEntries(known.map(([name]) => [name, given[name]])), sides: defaults.sides };
}

function readSide(side, given) {
  const found = { ...side };
  for (const { name } of SLIDERS) if (Number.isFinite(given?.[name])) found[name] = given[name];
  if (Number.isSafeInteger(given?.seed) || given?.seed === null) found.seed = given.seed;
  if (typeof given?.semantics === "string") found.semantics = given.semantics;
  return found;
}

function isMessage(value) {
  return ["user", "assistant"].includes(value?.role) && typeof value.content === "string";
}

function plainMessage({ role, content }) {
  return { role, content };
}
