// One text as it grows: its tokens, where each was drawn, and the other texts that branched from it.

import { postEvents } from "./api.js";

/**
 * A token is {id, text, logprob, chosen, isEnd, inputIds, outputIds, before}: it was drawn, or chosen by hand, after the
 * prompt `inputIds` and the first `before` of `outputIds`, the tokens of the text.
 */
export class Run {
  constructor(side) {
    this.side = side;
    this.tokens = [];
    this.seed = null;
    this.finish = null;
    this.branches = [];
    this.branch = 0;
    this.stop = null;
  }

  get running() {
    return this.stop !== null;
  }

  /** The text without the token that ends it. */
  get text() {
    return this.tokens.map(({ text, isEnd }) => (isEnd ? "" : text)).join("");
  }

  /** What the token at a position was drawn after, or what the next one would be; null before there is a prompt. */
  context(position, promptIds) {
    const token = this.tokens[position];
    if (token !== undefined) return { input_ids: token.inputIds, output_ids: token.outputIds.slice(0, token.before) };
    const last = this.tokens.at(-1);
    if (last === undefined) return promptIds === null ? null : { input_ids: promptIds, output_ids: [] };
    return { input_ids: last.inputIds, output_ids: last.outputIds.slice(0, last.before + 1) };
  }

  /** Draws tokens after those of a context; with the first `begin` is called, and `changed` after every event. */
  async generate({ input_ids: inputIds, output_ids: begun }, params, { begin, changed }) {
    const control = new AbortController();
    this.stop = control;
    const body = {
      input_ids: inputIds,
      output_ids: begun,
      sampling_params: { ...params, logprobs_mode: "raw" },
      stream: true,
      stream_options: { mode: "delta" },
      return_logprob: true,
      return_text_in_logprobs: true,
    };
    try {
      const outputIds = [...begun];
      let known = begun.length;
      for await (const event of postEvents("generate", body, control.signal)) {
        if (outputIds.length === begun.length) begin();
        this.seed = event.meta_info.seed;
        this.add(event, { inputIds, outputIds, known });
        known = 0;
        changed();
      }
    } catch (error) {
      if (error.name !== "AbortError") throw error;
      this.finish = { type: "abort" };
    } finally {
      this.stop = null;
      changed();
    }
  }

  /** Adds the tokens of an event, of which the first `known` are those of the request. */
  add(event, { inputIds, outputIds, known }) {
    const entries = event.meta_info.output_token_logprobs.slice(known);
    const texts = entries.map(([, , text]) => text);
    // Bytes of a character that is not complete yet have no text; the event that completes it does.
    const whole = texts.every((text) => !text.includes("\ufffd"));
    const rest = event.text.slice(known > 0 ? this.text.length : 0);
    entries.forEach(([logprob, id], index) => {
      const text = whole ? texts[index] : index === entries.length - 1 ? rest : "";
      const before = outputIds.length;
      this.tokens.push({ id, text, logprob, chosen: false, isEnd: false, inputIds, outputIds, before });
      outputIds.push(id);
    });
    this.finish = event.meta_info.finish_reason ?? this.finish;
    if (this.finish?.kind === "eos") this.tokens.at(-1).isEnd = true;
    if (this.finish?.type === "error") throw new Error(this.finish.message);
  }

  /** Ends the text before a position, with another token there; gives the context in which it goes on. */
  rewind(position, { id, text, logprob }, promptIds) {
    const { input_ids: inputIds, output_ids: outputIds } = this.context(position, promptIds);
    this.keepBranch();
    this.tokens = this.tokens.slice(0, position);
    this.finish = null;
    const before = outputIds.length;
    outputIds.push(id);
    this.tokens.push({ id, text, logprob, chosen: true, isEnd: false, inputIds, outputIds, before });
    this.branches.push(null);
    this.branch = this.branches.length - 1;
    return { input_ids: inputIds, output_ids: outputIds };
  }

  /** Ends the text with its last token. */
  end() {
    this.tokens.at(-1).isEnd = true;
    this.finish = { type: "stop" };
  }

  keepBranch() {
    const { tokens, finish, seed } = this;
    this.branches[this.branch] = { tokens, finish, seed };
  }

  /** Shows another of the branches. */
  show(branch) {
    this.keepBranch();
    this.branch = branch;
    Object.assign(this, this.branches[branch]);
  }

  clear() {
    this.tokens = [];
    this.finish = null;
    this.branches = [];
    this.branch = 0;
  }
}
