// The page: connects prompt, settings, texts and inspector with the session.

import { ServerError, getJson, hasKey, onKeyWanted } from "./api.js";
import { FORMS } from "./code.js";
import { Controls } from "./controls.js";
import { askKey, byId, shareLink, showAlert, showCodes, showFieldErrors } from "./dialogs.js";
import { Inspector } from "./inspector.js";
import { showMessages } from "./messages.js";
import { Session } from "./session.js";
import { fromFragment, newState, toFragment } from "./settings.js";
import { TextView, element } from "./text.js";

const EXAMPLES = {
  json_schema: '{\n  "type": "object",\n  "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},\n  "required": ["name", "age"],\n  "additionalProperties": false\n}',
  regex: "(yes|no), because [a-z ]+\\.",
  ebnf: 'root ::= ("a" | "b")+ "."',
};

const state = startState();
const session = new Session(state, { explained, unexplained, changed, selected, failed, say });
const views = session.runs.map((run) => {
  return new TextView(run, { select: (position, kept) => session.select(run.side, position, kept) });
});
const inspector = new Inspector({ choose: (trace) => session.choose(trace) });
const controls = new Controls(byId("controls"), { current: () => state.sides[editedSide()], changed: settingsChanged });
let edited = 0;
let model = "";
// Whether the page says that the server does not answer.
let isGone = false;

function startState() {
  try {
    return fromFragment(location.hash) ?? newState();
  } catch {
    showAlert("The link could not be read, so the page begins with its own settings.");
    return newState();
  }
}

function editedSide() {
  return state.compare ? edited : 0;
}

// --- what the session tells -----------------------------------------------------------------------------------------

function explained({ side, position, token, explanations: [own, other = null], ms }) {
  const whose = state.compare ? ` of ${"AB"[side]}` : "";
  inspector.show(own, {
    title: position === null ? `Next token${whose}` : `Token ${position + 1}${whose}`,
    actual: position === null ? null : (token?.id ?? null),
    other,
    fixed: session.fixed,
    names: [side, 1 - side].map((each) => "AB"[each]),
  });
  inspector.took(ms);
  showFieldErrors({});
  if (isGone) showAlert("");
  isGone = false;
}

function unexplained(error) {
  // What became of a text is not overwritten by what became of its explanation.
  if (error instanceof ServerError && error.status === 0 && byId("alert").hidden) {
    isGone = true;
    showAlert(error.message);
  }
  const field = fieldOf(error);
  showFieldErrors(field === null ? {} : { [field]: error.message });
  const misfit = error.param === "output_ids" && error.code === null;
  inspector.fail(misfit ? "These settings would have ended the text before this token." : error.message);
}

function changed(run) {
  views[run.side].update();
  showState();
}

function selected() {
  const { side, position, kept } = session.looked;
  for (const { run, box } of views) box.classList.toggle("kept", kept && position !== null && run.side === side);
  for (const view of views) view.mark(view.run.side === side ? position : null);
}

function failed(error) {
  const field = fieldOf(error);
  if (field === null) showAlert(error.message);
  else showFieldErrors({ [field]: error.message });
}

/** The field of the page that an error is about; null for none. */
function fieldOf({ field, param }) {
  if (field !== undefined) return field;
  return state.constraintKind !== "" && param === `sampling_params.${state.constraintKind}` ? "constraint" : null;
}

function say(text) {
  byId("status").textContent = text;
}

// --- what the page shows --------------------------------------------------------------------------------------------

/** Shows the whole state, after it was read from a link or changed in one of its larger parts. */
function show() {
  for (const [id, name] of TEXTS) byId(id).value = state[name];
  byId("constraint-kind").value = state.constraintKind;
  byId("max-tokens").value = state.maxTokens;
  byId("compare").checked = state.compare;
  for (const radio of document.querySelectorAll("[name=mode]")) radio.checked = radio.value === state.mode;
  byId("messages").hidden = state.mode !== "chat";
  byId("constraint").hidden = state.constraintKind === "";
  byId("side-choice").hidden = !state.compare;
  byId("sides").replaceChildren(...(state.compare ? views : views.slice(0, 1)).map(({ root }) => root));
  byId("sides").classList.toggle("two", state.compare);
  showMessages(byId("messages"), state, promptChanged);
  controls.show();
  for (const view of views) view.update();
  showState();
}

/** Shows what depends on whether texts are drawn, and on their branches. */
function showState() {
  const { running, isEmpty } = session;
  byId("stop").hidden = !running;
  byId("generate").hidden = running;
  byId("reply").hidden = state.mode !== "chat" || running || isEmpty;
  for (const view of views) showHead(view);
}

function showHead({ head, run, box }) {
  const name = state.compare ? `Text ${"AB"[run.side]}` : "Text";
  box.setAttribute("aria-label", `${name}: tokens, move with the arrow keys`);
  const parts = [element("h2", "", name)];
  if (run.branches.length > 1) {
    parts.push(branchButton(run, -1), element("span", "quiet", `branch ${run.branch + 1} of ${run.branches.length}`));
    parts.push(branchButton(run, 1));
  }
  const shown = parts.map((part) => part.textContent).join("");
  if (head.textContent !== shown) head.replaceChildren(...parts);
}

function branchButton(run, by) {
  const button = element("button", "plain", by < 0 ? "‹" : "›");
  button.type = "button";
  button.setAttribute("aria-label", by < 0 ? "Branch before" : "Branch after");
  button.addEventListener("click", () => run.running || session.showBranch(run.side, by));
  return button;
}

// --- what a person does ---------------------------------------------------------------------------------------------

const TEXTS = [["prompt", "prompt"], ["constraint", "constraint"], ["more", "more"]];

function settingsChanged() {
  session.latest.ask();
}

function promptChanged() {
  if (session.isEmpty) session.latest.askSoon();
}

function generate() {
  isGone = false;
  showAlert("");
  showFieldErrors({});
  if (!session.running) session.generate();
}

function addReply() {
  const text = session.runs[0].text.trim();
  state.messages.push({ role: "user", content: state.prompt }, { role: "assistant", content: text });
  state.prompt = "";
  for (const run of session.runs) run.clear();
  show();
  session.lookAtNext();
  byId("prompt").focus();
}

function showCode() {
  try {
    const seed = session.runs[editedSide()].seed;
    const { params, inputIds } = { params: session.params(editedSide(), seed), inputIds: session.prompt.ids };
    const url = new URL(".", location.href).href;
    const request = { state, params, url, model, keyed: hasKey(), inputIds };
    showCodes(FORMS.map(([name, write]) => [name, write(request)]));
  } catch (error) {
    failed(error);
  }
}

function listen() {
  for (const [id, name] of TEXTS) {
    byId(id).addEventListener("input", ({ target }) => {
      state[name] = target.value;
      if (name === "prompt") promptChanged();
      else session.latest.askSoon();
    });
  }
  onChange("#constraint-kind", ({ value }) => {
    Object.assign(state, { constraintKind: value, constraint: EXAMPLES[value] ?? "" });
    showFieldErrors({});
  });
  onChange("[name=mode]", ({ value }) => (state.mode = value));
  onChange("[name=side]", ({ value }) => (edited = Number(value)));
  onChange("#compare", ({ checked }) => {
    state.compare = checked;
    session.lookAtNext(0);
  });
  byId("max-tokens").addEventListener("input", ({ target }) => {
    if (target.checkValidity()) state.maxTokens = target.valueAsNumber;
  });
  const clicks = { generate, stop: () => session.stop(), reply: addReply, code: showCode };
  for (const [id, act] of Object.entries(clicks)) byId(id).addEventListener("click", act);
  byId("share").addEventListener("click", ({ target }) => shareLink(toFragment(state), target));
  byId("alert").lastElementChild.addEventListener("click", () => showAlert(""));
  document.addEventListener("keydown", shortcut);
}

/** Calls `act` with the element that a change came from, then shows everything anew. */
function onChange(selector, act) {
  for (const each of document.querySelectorAll(selector)) {
    each.addEventListener("change", () => {
      act(each);
      show();
      session.latest.ask();
    });
  }
}

function shortcut(event) {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") session.lookAtNext();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) generate();
}

async function start() {
  onKeyWanted(askKey);
  listen();
  controls.listPresets([]);
  if (matchMedia("(max-width: 60rem)").matches) byId("settings").open = false;
  show();
  // What the server says of itself is not waited for: only other limits than the usual ones change this answer.
  session.latest.ask();
  try {
    const [info, settings] = await Promise.all([answered("model_info"), answered("server_info")]);
    model = info.model_path;
    session.endIds = new Set(info.eos_token_ids);
    const top = Math.min(session.top, settings.max_top_logprobs);
    const isWrong = top < session.top || inspector.failed;
    session.top = top;
    if (isWrong) session.latest.ask();
    byId("model").textContent = `${model} · ${info.vocab_size.toLocaleString("en")} tokens · context ${info.max_model_len.toLocaleString("en")}`;
    controls.listPresets(info.semantics);
  } catch (error) {
    byId("model").textContent = "";
    failed(error);
  }
}

/** What the server says of itself, as soon as its model is loaded. */
async function answered(path) {
  for (;;) {
    try {
      return await getJson(path);
    } catch (error) {
      if (error.status !== 503) throw error;
      byId("model").textContent = error.message;
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
  }
}

start();
