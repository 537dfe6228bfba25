/** The stream of what happens: kept open, opened again when it breaks, and honest about it. */

import { Refusal, refusalOf } from "./http.js";
import { eventParser } from "./sse.js";

const FIRST_PAUSE_MS = 1000;
const LONGEST_PAUSE_MS = 15_000;
/** The server says something at least this often, or the connection is dead. */
const SILENCE_MS = 45_000;

/**
 * @typedef {{kind: "connecting"|"live"}
 *   | {kind: "lost", retryAt: number}
 *   | {kind: "refused", message: string}} LiveState
 */

export class LiveFeed {
  /**
   * @param {object} options
   * @param {import("./session.js").Session} options.session
   * @param {(event: string, data: any) => void} options.onEvent
   * @param {(state: LiveState) => void} options.onState
   */
  constructor({ session, onEvent, onState }) {
    this.session = session;
    this.onEvent = onEvent;
    this.onState = onState;
    this.failures = 0;
    /** @type {AbortController|null} */
    this.current = null;
    /** @type {number|undefined} */
    this.timer = undefined;
    window.addEventListener("online", () => this.tryNow());
  }

  /** Also with a new token: what was open before is closed. */
  restart() {
    this.failures = 0;
    this.#connect();
  }

  /** Not to wait for the end of the pause. */
  tryNow() {
    if (this.timer !== undefined) this.#connect();
  }

  async #connect() {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.current?.abort();
    const controller = (this.current = new AbortController());
    this.onState({ kind: "connecting" });
    try {
      await this.#read(controller);
      throw new Error("the stream has ended");
    } catch (error) {
      if (this.current !== controller) return; // somebody has begun anew
      controller.abort();
      if (error instanceof Refusal && (error.status === 401 || error.status === 403)) {
        this.onState({ kind: "refused", message: error.message });
      } else {
        this.#pause();
      }
    }
  }

  /** @param {AbortController} controller */
  async #read(controller) {
    let silence = setTimeout(() => controller.abort(), SILENCE_MS);
    try {
      const response = await fetch("/api/v1/stream", {
        headers: { ...this.session.headers(), Accept: "text/event-stream" },
        cache: "no-store",
        signal: controller.signal,
      });
      if (!response.ok) throw await refusalOf(response);
      if (!response.body) throw new Error("the answer has no body");
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      const feed = eventParser((event, data) => {
        if (this.current !== controller) return;
        this.failures = 0;
        this.onEvent(event, JSON.parse(data));
        if (event === "overview") this.onState({ kind: "live" });
      });
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(silence);
        silence = setTimeout(() => controller.abort(), SILENCE_MS);
        feed(value);
      }
    } finally {
      clearTimeout(silence);
    }
  }

  #pause() {
    const longest = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** this.failures);
    this.failures += 1;
    // Not all pages of a restarted server at once.
    const pause = longest * (0.75 + 0.25 * Math.random());
    this.timer = setTimeout(() => this.#connect(), pause);
    this.onState({ kind: "lost", retryAt: Date.now() + pause });
  }
}
