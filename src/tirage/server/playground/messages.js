// The chat so far: what was said, with a button that takes a message out.

import { element } from "./text.js";

const NAMES = { user: "You", assistant: "Model" };

/** Fills `root` with the system message and the messages of the state; `changed` is called after every change. */
export function showMessages(root, state, changed) {
  const label = element("label", "quiet", "System message");
  const system = element("textarea");
  Object.assign(system, { rows: 1, id: "system", value: state.system, spellcheck: false });
  label.htmlFor = system.id;
  system.addEventListener("input", () => {
    state.system = system.value;
    changed();
  });
  const list = element("ol");
  list.append(...state.messages.map((message, index) => item(message, () => remove(index))));
  root.replaceChildren(label, system, list);

  function remove(index) {
    state.messages.splice(index, 1);
    showMessages(root, state, changed);
    changed();
  }
}

function item({ role, content }, remove) {
  const made = element("li", role);
  const text = element("p", "", content);
  const button = element("button", "plain", "×");
  button.type = "button";
  button.setAttribute("aria-label", `Take this message of ${NAMES[role]} out`);
  button.addEventListener("click", remove);
  made.append(element("span", "quiet", NAMES[role]), text, button);
  return made;
}
