// Messages and dialogs: errors beside their field, the key, and the request as code.

import { element } from "./text.js";

export function byId(id) {
  return document.getElementById(id);
}

/** Shows a message at the top of the page; an empty one hides it. */
export function showAlert(message) {
  const box = byId("alert");
  box.hidden = message === "";
  box.firstElementChild.textContent = message;
}

/** Shows errors beside their fields, by the names "constraint" and "more", and hides the others. */
export function showFieldErrors(errors) {
  for (const name of ["constraint", "more"]) {
    const place = byId(`${name}-error`);
    place.textContent = errors[name] ?? "";
    place.hidden = errors[name] === undefined;
    byId(name).setAttribute("aria-invalid", String(errors[name] !== undefined));
  }
}

let asked = null;

/** The key that a person types; several requests that want one at a time ask once. */
export function askKey(problem) {
  asked ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    const input = byId("key");
    byId("key-error").textContent = problem;
    byId("key-error").hidden = problem === "";
    byId("key-form").onsubmit = (event) => {
      event.preventDefault();
      asked = null;
      const typed = input.value.trim();
      input.value = "";
      dialog.close();
      resolve(typed);
    };
    dialog.oncancel = (event) => event.preventDefault();
    dialog.showModal();
  });
  return asked;
}

/** Shows the forms of a request, [name, text] each, with a button that copies the one that is shown. */
export function showCodes(forms) {
  const dialog = byId("code-dialog");
  const show = ([, text]) => {
    byId("code-text").textContent = text;
    byId("code-copy").textContent = "Copy";
  };
  byId("code-kinds").replaceChildren(
    ...forms.map((form, index) => {
      const label = element("label");
      const radio = element("input");
      Object.assign(radio, { type: "radio", name: "code", checked: index === 0 });
      radio.addEventListener("change", () => show(form));
      label.append(radio, element("span", "", form[0]));
      return label;
    }),
  );
  show(forms[0]);
  byId("code-copy").onclick = () => copy(byId("code-text"), byId("code-copy"));
  byId("code-close").onclick = () => dialog.close();
  dialog.showModal();
}

/** Copies the text of an element, or selects it where the browser forbids that, and says so on the button. */
async function copy(source, button) {
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source);
    button.textContent = "Selected; press Ctrl+C";
  }
}

/** Copies a link into the address bar and, where the browser allows it, the clipboard; says so on the button. */
export async function shareLink(fragment, button) {
  history.replaceState(null, "", fragment);
  const label = "Copy link";
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
  } catch {
    button.textContent = "It is in the address bar";
  }
  setTimeout(() => (button.textContent = label), 2000);
}
