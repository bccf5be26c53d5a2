// The settings of a side: sliders with numbers beside them, the preset and the seed.

import { SLIDERS, newSide } from "./settings.js";
import { element } from "./text.js";

/** The controls in `root` for the side that `current()` gives; `changed` is called after every change of it. */
export class Controls {
  constructor(root, { current, changed }) {
    this.current = current;
    this.changed = changed;
    this.rows = SLIDERS.map((slider) => this.sliderRow(slider));
    this.semantics = this.selectRow();
    this.seed = this.seedRow();
    const reset = element("button", "plain", "Reset these settings");
    reset.type = "button";
    reset.addEventListener("click", () => this.set(newSide()));
    root.append(this.semantics.parentElement, ...this.rows.map(({ row }) => row), this.seed.parentElement, reset);
  }

  /** Lists the presets of the server. */
  listPresets(names, chosen = this.current().semantics) {
    const options = ["", ...names].map((name) => {
      const option = element("option", "", name === "" ? "server's default (sglang)" : name);
      option.value = name;
      return option;
    });
    this.semantics.replaceChildren(...options);
    this.semantics.value = chosen;
  }

  /** Shows the values of the current side. */
  show() {
    const side = this.current();
    for (const { slider, range, number, row } of this.rows) {
      range.value = side[slider.name];
      number.value = side[slider.name];
      range.setAttribute("aria-valuetext", side[slider.name] === slider.off ? `${slider.off}, off` : side[slider.name]);
      row.classList.toggle("off", side[slider.name] === slider.off);
    }
    this.semantics.value = side.semantics;
    this.seed.value = side.seed ?? "";
  }

  set(values) {
    Object.assign(this.current(), values);
    this.show();
    this.changed();
  }

  sliderRow(slider) {
    const row = element("div", "slider");
    const label = element("label", "", slider.label);
    const [range, number] = ["range", "number"].map((type) => {
      const input = element("input");
      Object.assign(input, { type, min: slider.min, max: slider.max, step: slider.step, id: `${type}-${slider.name}` });
      return input;
    });
    label.htmlFor = range.id;
    // A number may be outside the slider's range: the server says what is allowed.
    number.removeAttribute("min");
    number.removeAttribute("max");
    number.step = "any";
    number.setAttribute("aria-label", `${slider.label}, as a number`);
    range.addEventListener("input", () => this.set({ [slider.name]: range.valueAsNumber }));
    number.addEventListener("change", () => {
      this.set({ [slider.name]: Number.isFinite(number.valueAsNumber) ? number.valueAsNumber : slider.off });
    });
    row.append(label, number, range);
    return { slider, range, number, row };
  }

  selectRow() {
    const row = element("div", "field");
    const label = element("label", "", "Preset");
    const select = element("select");
    select.id = label.htmlFor = "semantics";
    select.title = "Whose meaning the parameters have, and in which order the stages run";
    select.addEventListener("change", () => this.set({ semantics: select.value }));
    row.append(label, select);
    return select;
  }

  seedRow() {
    const row = element("div", "field");
    const label = element("label", "", "Seed");
    const input = element("input");
    Object.assign(input, { type: "number", min: 0, step: 1, id: "seed", placeholder: "a new one each time" });
    label.htmlFor = input.id;
    input.addEventListener("input", () => {
      const seed = input.value === "" ? null : input.valueAsNumber;
      if (seed === null || Number.isSafeInteger(seed)) {
        this.current().seed = seed;
        this.changed();
      }
    });
    row.append(label, input);
    return input;
  }
}
