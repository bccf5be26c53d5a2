// One draw, stage by stage: what each stage removed, and the alternatives before and after it.

import { element, percent } from "./text.js";

const ROWS = 14;

/** Shows explanations in the section with the given elements; `choose(token)` is called for an alternative. */
export class Inspector {
  constructor({ choose }) {
    this.choose = choose;
    this.parts = Object.fromEntries(
      ["inspector", "inspector-title", "took", "headline", "stages", "allowed", "alternatives", "inspector-note"].map(
        (id) => [id, document.getElementById(id)],
      ),
    );
  }

  /** An explanation of /explain under a title. `actual` is the token in the text, `other` the explanation of the other
   *  side with the `names` of both, `fixed` why no other token can be chosen. */
  show(explanation, { title, actual = null, other = null, fixed = "", names = ["", ""] }) {
    const { parts } = this;
    parts.inspector.classList.remove("stale");
    parts["inspector-title"].textContent = title;
    parts.headline.textContent = headline(explanation, actual);
    parts.stages.replaceChildren(...explanation.stages.map(stageItem));
    this.showAllowed(explanation);
    this.showTable(explanation, { actual, other, fixed, names });
    parts["inspector-note"].textContent = explanation.reason;
  }

  /** Says instead of an explanation why there is none; what was shown stays, paler. */
  fail(message) {
    this.parts.inspector.classList.add("stale");
    this.parts.headline.textContent = message;
  }

  /** Whether `fail` was called last. */
  get failed() {
    return this.parts.inspector.classList.contains("stale");
  }

  took(ms) {
    this.parts.took.textContent = ms === null ? "" : `${ms.toFixed(0)} ms`;
  }

  showAllowed({ allowed, vocab_size: size }) {
    const box = this.parts.allowed;
    box.hidden = allowed === null;
    if (allowed === null) return;
    const some = allowed.count > allowed.tokens.length ? ", the likeliest first" : "";
    const text = `The constraint allows ${count(allowed.count)} of ${count(size)} tokens here${some}:`;
    const chips = element("p", "chips");
    chips.append(...allowed.tokens.map(({ shown }) => element("span", "token", bare(shown))));
    box.replaceChildren(element("p", "", text), chips);
  }

  showTable(explanation, { actual, other, fixed, names }) {
    const stages = explanation.stages.slice(1);
    const others = new Map(other?.tokens.map((trace) => [trace.token_id, trace]) ?? []);
    const head = element("tr");
    const titles = ["Token", "Model", ...stages.map(({ label }) => label), other === null ? "Final" : names[0]];
    head.append(...[...titles, ...(other === null ? [] : [names[1]])].map(headCell));
    const rows = shownRows(explanation, actual).map((trace) => {
      const row = element("tr", rowClass(trace, actual));
      row.append(this.tokenCell(trace, actual, fixed), barCell(trace.model_probability, explanation, "model"));
      row.append(...stages.map((stage, index) => stageCell(stage, trace, index + 1)));
      row.append(barCell(trace.probability, explanation, "law"));
      if (other !== null) row.append(barCell(others.get(trace.token_id)?.probability ?? null, other, "law other"));
      return row;
    });
    const body = element("tbody");
    body.append(...rows);
    const thead = element("thead");
    thead.append(head);
    this.parts.alternatives.replaceChildren(thead, body);
  }

  tokenCell(trace, actual, fixed) {
    const cell = element("th");
    cell.scope = "row";
    const button = element("button", "token", bare(trace.shown));
    button.type = "button";
    const banned = trace.removed_by === "mask" ? "The constraint does not allow it" : fixed;
    const because = trace.token_id === actual ? "This one is in the text" : banned;
    button.disabled = because !== "";
    button.title = because === "" ? `Go on with this token (${trace.token_id})` : because;
    button.addEventListener("click", () => this.choose(trace));
    cell.append(button);
    return cell;
  }
}

/** A token as it is shown, without the quotation marks around it. */
function bare(shown) {
  return shown.startsWith('"') && shown.length > 2 ? shown.slice(1, -1) : shown;
}

function headline({ token, probability, support_size: left, token_id: id, status }, actual) {
  if (token === null) return `No token can be drawn: ${status.replaceAll("_", " ")}.`;
  const among = `${percent(probability)} among ${count(left)} tokens left`;
  const share = left === 1 ? "the only one that can be drawn" : among;
  const differs = actual !== null && actual !== id ? " The text has another one." : "";
  return `These settings draw “${bare(token.shown)}”: ${share}.${differs}`;
}

function stageItem(stage, index) {
  const item = element("li", `${stage.kind}${stage.reached ? "" : " unreached"}`);
  item.title = stage.note;
  const name = element("span", "stage", index === 0 ? "model" : stage.label);
  name.append(element("span", "setting", settingOf(stage)));
  item.append(name);
  item.append(element("span", "kept", count(stage.candidates_after)));
  if (stage.removed_count > 0 && index > 0) {
    item.append(element("span", "gone", `−${count(stage.removed_count)} (${percent(stage.removed_mass)})`));
  } else if (stage.changed_count > 0) {
    item.append(element("span", "quiet", `${count(stage.changed_count)} changed`));
  }
  return item;
}

/** The value of the parameter that turned a stage on, where it is a number. */
function settingOf({ params }) {
  const [value] = Object.values(params);
  return typeof value === "number" ? ` ${value}` : "";
}

/** The rows to show: the likeliest before and after the stages, the drawn one and the one in the text. */
function shownRows({ tokens }, actual) {
  const after = tokens.filter(({ probability }) => probability > 0).sort((a, b) => b.probability - a.probability);
  const kept = new Set([...tokens.slice(0, ROWS - 4), ...after.slice(0, ROWS - 4)]);
  for (const trace of tokens) if (trace.drawn || trace.token_id === actual) kept.add(trace);
  return tokens.filter((trace) => kept.has(trace));
}

function rowClass({ drawn, removed_by: gone, token_id: id }, actual) {
  const classes = [drawn ? "drawn" : "", gone === null ? "" : "fallen", id === actual ? "actual" : ""];
  return classes.filter((each) => each !== "").join(" ");
}

function headCell(title) {
  const cell = element("th", "", title);
  cell.scope = "col";
  return cell;
}

function barCell(p, { tokens }, kind) {
  const cell = element("td", `bar ${kind}`);
  const field = kind === "model" ? "model_probability" : "probability";
  const most = Math.max(...tokens.map((trace) => (typeof trace[field] === "number" ? trace[field] : 0)));
  cell.style.setProperty("--part", p > 0 && most > 0 ? Math.max(p / most, 0.01).toFixed(3) : 0);
  cell.append(element("span", "", p === null ? "·" : p > 0 ? percent(p) : "–"));
  return cell;
}

function stageCell(stage, trace, index) {
  const step = trace.steps[index];
  const inside = trace.steps[index - 1].kept;
  if (!step.kept) {
    const cell = element("td", inside ? "out" : "", inside ? "✗" : "");
    if (inside) {
      cell.title = `removed by ${stage.label}; until then ${percent(step.probability_before)}`;
      cell.setAttribute("aria-label", cell.title);
    }
    return cell;
  }
  const cell = element("td", "in", percent(step.probability_after).replace(" %", ""));
  cell.title = `${stage.label}: ${percent(step.probability_before)} → ${percent(step.probability_after)}`;
  return cell;
}

function count(number) {
  return number.toLocaleString("en");
}
