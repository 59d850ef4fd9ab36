// The transcript of one session. Pure: no DOM, no network.
//
// Pass it every message of streamd.v1 (docs/protocol.md) in order. It survives reconnects: replayed
// finals that it already has are ignored, so no line appears twice.

export class Transcript {
  /** `history`: begin with the finals from before the page was opened. */
  constructor({ history = true } = {}) {
    this.history = history;
    this.items = []; // finals, gaps, holes and restarts, in the order of the stream
    this.partial = null; // the current partial, or null
    this.epoch = null;
    this.seq = 0; // of the last final
    this.caughtUpAt = 0; // the final with which a replay ends
    this.lagMs = null;
    this.speech = false;
    this.ended = null; // why the session ended, or null
  }

  /** The query parameters with which the next connection resumes. */
  get resume() {
    if (this.epoch === null) return this.history ? { after: "0" } : {};
    return { after: String(this.seq), epoch: this.epoch };
  }

  /** Apply one message; returns what changed: "item", "partial", "state" or "nothing". */
  apply(message) {
    switch (message.type) {
      case "hello":
        return this.#hello(message);
      case "final":
        return this.#final(message);
      case "partial":
        return this.#partial(message);
      case "gap":
      case "missed":
        return this.#add(message);
      case "vad":
        this.speech = message.speech;
        return "state";
      case "lag":
        this.lagMs = message.lag_ms;
        return "state";
      case "eos":
        this.ended = message.reason;
        this.partial = null;
        return "state";
      default:
        return "nothing"; // a type that is newer than this page
    }
  }

  /** All finals, oldest first. */
  get finals() {
    return this.items.filter((item) => item.type === "final");
  }

  #hello(hello) {
    const restarted = this.epoch !== null && this.epoch !== hello.epoch;
    if (this.epoch === null && !this.history) this.seq = hello.seq;
    if (restarted) this.seq = 0;
    this.caughtUpAt = hello.seq;
    this.epoch = hello.epoch;
    this.ended = null;
    this.partial = null; // the server sends it again
    return restarted ? this.#add({ type: "restart" }) : "state";
  }

  #final(final) {
    if (this.partial !== null && this.partial.seg <= final.seg) this.partial = null;
    if (final.seq <= this.seq) return "state";
    this.seq = final.seq;
    return this.#add(final);
  }

  #partial(partial) {
    this.lagMs = partial.lag_ms;
    this.partial = partial.text === "" ? null : partial;
    return "partial";
  }

  #add(item) {
    this.items.push(item);
    return "item";
  }
}

/**
 * Returns the place of each word in a text: [{from, to, prob, final}], in order.
 *
 * Words come without the blanks between them (and some languages have none), so each is expected
 * after the previous one. The list ends at the first that is not there; what it has is right.
 */
export function placed(text, words) {
  const places = [];
  let at = 0;
  for (const word of words) {
    const from = text.indexOf(word.text, at);
    if (from < 0 || text.slice(at, from).trim() !== "") break;
    at = from + word.text.length;
    places.push({ from, to: at, prob: word.prob, final: word.final });
  }
  return places;
}

/** 83000 -> "1:23", 3723000 -> "1:02:03". */
export function clock(ms) {
  const s = Math.floor(ms / 1000);
  const [hours, minutes, seconds] = [Math.floor(s / 3600), Math.floor(s / 60) % 60, s % 60];
  const two = (n) => String(n).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(seconds)}` : `${minutes}:${two(seconds)}`;
}
