// The texts of both sides, and which draw of them is looked at.

import { postJson } from "./api.js";
import { Latest } from "./latest.js";
import { Run } from "./run.js";
import { chatMessages, freshSeed, samplingParams } from "./settings.js";

/**
 * `explained(found)` is called with what to show of a draw, `unexplained(error)` where there is nothing, `changed(run)` when a text has changed, `selected()` when
 * another draw is looked at, `say(text)` with what a screen reader should say, and `failed(error)`.
 */
export class Session {
  constructor(state, listeners) {
    this.state = state;
    this.listeners = listeners;
    this.runs = [new Run(0), new Run(1)];
    // A token of a side, or with position null the next one; `kept` holds it while the mouse moves.
    this.looked = { side: 0, position: null, kept: false };
    this.endIds = new Set();
    // How many of the likeliest tokens the server follows through the stages.
    this.top = 20;
    this.prompt = { body: null, ids: null };
    this.latest = new Latest(() => this.explain(), listeners.unexplained);
  }

  get running() {
    return this.runs.some((run) => run.running);
  }

  get isEmpty() {
    return this.runs.every((run) => run.tokens.length === 0);
  }

  /** Why no other token can be chosen; "" where one can. */
  get fixed() {
    return this.running ? "Wait for the text, or stop it" : "";
  }

  // --- explaining ---------------------------------------------------------------------------------------------------

  select(side, position, kept) {
    if (this.looked.kept && !kept) return;
    this.looked = { side, position, kept };
    this.listeners.selected();
    this.latest.ask();
  }

  lookAtNext(side = this.looked.side) {
    this.select(side, null, true);
    this.looked.kept = false;
    this.listeners.selected();
  }

  async explain() {
    const { side } = this.looked;
    const run = this.runs[side];
    if (this.looked.position === null && run.running) return;
    // After the end of a text there is no next token.
    const position = this.looked.position ?? (run.finish?.type === "stop" ? run.tokens.length - 1 : null);
    const body = this.promptBody();
    const context = run.context(position ?? run.tokens.length, null) ?? body;
    const sides = this.state.compare ? [side, 1 - side] : [side];
    const params = sides.map((each) => this.params(each, this.runs[each].seed ?? 0));
    const token = run.tokens[position ?? -1];
    const follow = token === undefined ? [] : [token.id];
    const began = performance.now();
    const found = await postJson("explain", { ...context, sampling_params: params, top: this.top, follow });
    if (context === body) this.prompt = { body: JSON.stringify(body), ids: found.input_ids };
    const ms = performance.now() - began;
    this.listeners.explained({ side, position, token, explanations: found.explanations, ms });
  }

  /** The parameters of a side; `seed` is for settings that name none. */
  params(side, seed) {
    return samplingParams(this.state, side, this.state.sides[side].seed ?? seed);
  }

  promptBody() {
    const { state } = this;
    return state.mode === "chat" ? { messages: chatMessages(state) } : { text: state.prompt };
  }

  async promptIds() {
    const body = this.promptBody();
    const text = JSON.stringify(body);
    if (this.prompt.body !== text) {
      this.prompt = { body: text, ids: (await postJson("explain", { ...body, top: 0 })).input_ids };
    }
    return this.prompt.ids;
  }

  // --- drawing ------------------------------------------------------------------------------------------------------

  /** New texts of all sides that are shown. */
  async generate() {
    const sides = this.state.compare ? [0, 1] : [0];
    try {
      const params = sides.map((side) => this.params(side, freshSeed()));
      const ids = await this.promptIds();
      const context = { input_ids: ids, output_ids: [] };
      await Promise.all(sides.map((side, index) => this.draw(side, context, params[index], () => this.beginAnew(side))));
    } catch (error) {
      this.listeners.failed(error);
    }
  }

  /** The text before stays until the new one begins, and where that fails. */
  beginAnew(side) {
    this.runs[side].clear();
    this.looked = { side: this.looked.side, position: null, kept: false };
    this.listeners.selected();
  }

  async draw(side, context, params, begin = () => {}) {
    const run = this.runs[side];
    const { changed, failed, say } = this.listeners;
    say("Generating.");
    try {
      const drawn = run.generate(context, params, { begin, changed: () => changed(run) });
      changed(run);
      await drawn;
      say(`${run.tokens.length} tokens. ${run.text}`);
    } catch (error) {
      if (endsBefore(error)) run.end();
      else failed(error);
      say(`Stopped after ${run.tokens.length} tokens.`);
    }
    changed(run);
    if (!this.looked.kept) this.latest.ask();
  }

  stop() {
    for (const run of this.runs) run.stop?.abort();
  }

  /** Goes on with another token at the place that is looked at. */
  async choose({ token_id: id, text, model_probability: p }) {
    const { side } = this.looked;
    const run = this.runs[side];
    const position = this.looked.position ?? run.tokens.length;
    try {
      const promptIds = run.tokens.length === 0 ? await this.promptIds() : null;
      const params = this.params(side, run.seed ?? freshSeed());
      const context = run.rewind(position, { id, text: text ?? "", logprob: Math.log(p) }, promptIds);
      this.looked = { side, position, kept: true };
      if (this.endIds.has(id)) run.end();
      else await this.draw(side, context, { ...params, max_new_tokens: Math.max(params.max_new_tokens, position + 2) });
    } catch (error) {
      this.listeners.failed(error);
    }
    this.listeners.changed(run);
    this.select(side, position, true);
  }

  /** Shows the branch before (-1) or after (1) the one that is shown. */
  showBranch(side, by) {
    const run = this.runs[side];
    run.show((run.branch + by + run.branches.length) % run.branches.length);
    this.listeners.changed(run);
    this.lookAtNext(side);
  }
}

/** Whether the tokens that a request begins with end the text, so that there is none to draw. */
function endsBefore({ param, message }) {
  return param === "output_ids" && /got a text that ends: (eos|token|string|regex|grammar)$/.test(message);
}
