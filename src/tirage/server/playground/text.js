// The tokens of one side on the page: shaded by probability, and moved through with the keyboard.

const BOUNDS = [0.9, 0.5, 0.2, 0.05, 0.01];

/** A number in [0, 5]: the shade of a probability, 0 for the likeliest. */
export function heat(probability) {
  const found = BOUNDS.findIndex((bound) => probability >= bound);
  return found < 0 ? BOUNDS.length : found;
}

/** A probability in words, in percent with at most one decimal. */
export function percent(p) {
  if (typeof p !== "number") return "–";
  if (p > 0 && p < 0.001) return "<0.1 %";
  return `${(100 * p).toFixed(p === 1 || p === 0 ? 0 : 1)} %`;
}

export function element(name, classes = "", text = "") {
  const made = document.createElement(name);
  if (classes !== "") made.className = classes;
  if (text !== "") made.textContent = text;
  return made;
}

/** A text with its tokens as options of a list box. `select(position, kept)` is called for what is pointed at. */
export class TextView {
  constructor(run, { select }) {
    this.run = run;
    this.selected = null;
    this.frame = null;
    this.select = select;
    this.root = element("article", "side card");
    this.head = this.root.appendChild(element("div", "row side-head"));
    this.box = this.root.appendChild(element("div", "tokens"));
    this.foot = this.root.appendChild(element("p", "quiet finish"));
    this.box.setAttribute("role", "listbox");
    this.box.tabIndex = 0;
    this.box.dir = "auto";
    this.listen();
  }

  listen() {
    const positionOf = ({ target }) => (target.dataset?.at === undefined ? null : Number(target.dataset.at));
    let waiting = null;
    this.box.addEventListener("pointerover", (event) => {
      clearTimeout(waiting);
      const position = positionOf(event);
      if (event.pointerType === "mouse" && position !== null) waiting = setTimeout(() => this.select(position, false), 60);
    });
    this.box.addEventListener("pointerleave", () => clearTimeout(waiting));
    this.box.addEventListener("click", (event) => {
      const position = positionOf(event);
      if (position !== null) this.select(position, true);
    });
    this.box.addEventListener("keydown", (event) => this.move(event));
    this.box.addEventListener("focus", () => {
      if (this.selected === null && this.run.tokens.length > 0 && this.box.matches(":focus-visible")) this.select(0, false);
    });
  }

  move(event) {
    const count = this.run.tokens.length;
    const now = this.selected ?? -1;
    const steps = {
      ArrowRight: () => now + 1,
      ArrowLeft: () => now - 1,
      ArrowDown: () => this.onLine(now, 1),
      ArrowUp: () => this.onLine(now, -1),
      Home: () => 0,
      End: () => count - 1,
      Enter: () => now,
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in steps) || count === 0) return;
    event.preventDefault();
    this.select(Math.min(Math.max(steps[event.key](), 0), count - 1), event.key === "Enter");
    this.box.children[this.selected]?.scrollIntoView({ block: "nearest" });
  }

  /** The token on the line above or below that is nearest to the one at a position. */
  onLine(position, direction) {
    const spans = [...this.box.children];
    const from = spans[Math.max(position, 0)];
    const other = spans.filter((span) => (span.offsetTop - from.offsetTop) * direction > from.offsetHeight / 2);
    const tops = other.map((span) => span.offsetTop);
    const line = direction > 0 ? Math.min(...tops) : Math.max(...tops);
    const near = other.filter((span) => span.offsetTop === line);
    if (near.length === 0) return position;
    const distance = (span) => Math.abs(span.offsetLeft - from.offsetLeft);
    return spans.indexOf(near.reduce((a, b) => (distance(b) < distance(a) ? b : a)));
  }

  /** Shows what the run has now, before the next frame. */
  update() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  draw() {
    const { tokens } = this.run;
    const atEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 40;
    let same = Math.min(this.box.children.length, tokens.length);
    while (same > 0 && this.box.children[same - 1].token !== tokens[same - 1]) same -= 1;
    while (this.box.children.length > same) this.box.lastChild.remove();
    const added = document.createDocumentFragment();
    for (let at = same; at < tokens.length; at += 1) added.append(tokenSpan(tokens[at], at, this.run.side));
    this.box.append(added);
    if (atEnd && this.run.running) this.box.scrollTop = this.box.scrollHeight;
    this.box.classList.toggle("running", this.run.running);
    this.box.setAttribute("aria-busy", String(this.run.running));
    this.foot.textContent = this.run.running ? "" : finishText(this.run);
    this.mark(this.selected);
  }

  /** Marks the token at a position as the one that is looked at; null marks none. */
  mark(position) {
    this.box.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    this.selected = position !== null && position < this.run.tokens.length ? position : null;
    const span = this.selected === null ? null : this.box.children[this.selected];
    span?.setAttribute("aria-selected", "true");
    if (span) this.box.setAttribute("aria-activedescendant", span.id);
    else this.box.removeAttribute("aria-activedescendant");
  }
}

function tokenSpan(token, at, side) {
  const p = Math.exp(token.logprob);
  const span = element("span", `h${heat(p)}${token.chosen ? " chosen" : ""}${token.isEnd ? " end" : ""}`, token.text === "" ? "\u200b" : token.text);
  span.token = token;
  span.id = `token-${side}-${at}`;
  span.dataset.at = at;
  span.setAttribute("role", "option");
  span.setAttribute("aria-selected", "false");
  const said = token.text.trim() === "" ? JSON.stringify(token.text) : token.text;
  span.setAttribute("aria-label", `${said}, ${percent(p)}${token.chosen ? ", chosen by you" : ""}`);
  if (token.text.trim() === "") span.classList.add("blank");
  return span;
}

function finishText({ finish, tokens, seed }) {
  if (finish === null) return "";
  const ends = {
    length: "the number of tokens was reached",
    stop: "the text has ended",
    abort: "stopped",
    error: "an error ended it",
  };
  const count = `${tokens.length} ${tokens.length === 1 ? "token" : "tokens"}`;
  return [count, ends[finish.type] ?? finish.type, ...(seed === null ? [] : [`seed ${seed}`])].join(" · ");
}
