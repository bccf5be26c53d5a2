// Runs one question at a time, and always the newest.

/** `work(signal)` runs after `ask()`; one that is asked for meanwhile runs next, and those in between never. */
export class Latest {
  constructor(work, failed) {
    this.work = work;
    this.failed = failed;
    this.wanted = false;
    this.running = false;
    this.timer = null;
  }

  ask() {
    clearTimeout(this.timer);
    this.wanted = true;
    if (!this.running) this.run();
  }

  /** `ask`, once nothing has been asked for a moment: for what is being typed. */
  askSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), 250);
  }

  async run() {
    this.running = true;
    while (this.wanted) {
      this.wanted = false;
      try {
        await this.work();
      } catch (error) {
        this.failed(error);
      }
    }
    this.running = false;
  }
}
