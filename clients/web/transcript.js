// The transcript of a session, also if it ends and begins again. Pure: no DOM, no network.
//
// Pass it every message of streamd.v1 (docs/protocol.md) in order. It survives reconnects: replayed
// finals that it already has are ignored, so no line appears twice.

import { isSound, placeOf, sameSound } from "./sounds.js";

const UNSPACED = /[\p{sc=Han}\p{sc=Hira}\p{sc=Kana}\p{sc=Thai}\p{sc=Laoo}\p{sc=Khmr}\p{sc=Mymr}]/u;

const REMEMBERED_MS = 60_000; // for which the server may revise who talked

const NOTHING = {
  items: [], // finals, each with its run, gaps, holes and dividers, in the order of the stream
  origin: null, // wall-clock time of the transcript's time 0, in ms
  offsetMs: 0, // the session's time 0 in the transcript
  epoch: null,
  seq: 0, // of the last final
  divider: null, // to be added before the next item: the session began again
  attributions: [], // who talks after all, as somebody has said, the newest last
  clearedMs: -1, // sounds that began no later are not shown: they were removed
};

export class Transcript {
  /** `history`: begin with the finals from before the page was opened; `saved`: an earlier `state`. */
  constructor({ history = true, saved = {} } = {}) {
    this.history = history;
    Object.assign(this, NOTHING, { items: [] }, saved);
    this.partials = []; // the current ones, oldest first: one, or one of each channel
    this.turns = []; // who talks when, as far as the server may still revise it
    this.nReplayed = 0; // attributions that the server has sent since its last hello
    this.revised = 0; // the first item of which that was revised last
    this.newest = null; // the item that was added last
    this.caughtUpAt = 0; // the final with which a replay ends
    this.lagMs = null;
    this.speech = false;
    this.ended = null; // why the session ended, or null
  }

  /** What another transcript needs to go on, besides the items. */
  get state() {
    const { origin, offsetMs, epoch, seq, divider, attributions, clearedMs } = this;
    return { origin, offsetMs, epoch, seq, divider, attributions, clearedMs };
  }

  /** The query parameters with which the next connection resumes. */
  get resume() {
    if (this.epoch === null) return this.history ? { after: "0" } : {};
    return { after: String(this.seq), epoch: this.epoch };
  }

  /** The current partial that began first, or null. */
  get partial() {
    return this.partials[0] ?? null;
  }

  /**
   * Apply one message; returns what changed: "item" (one or two), "revised" (items from number
   * `revised` on), "partial", "state" or "nothing".
   */
  apply(message) {
    switch (message.type) {
      case "hello":
        return this.#hello(message);
      case "final":
        return this.#final(message);
      case "partial":
        return this.#partial(message);
      case "speakers":
        return this.#speakers(message);
      case "correction":
        return this.#correction(message);
      case "sound":
        return this.#sound({ ...moved(message, this.offsetMs), run: this.epoch });
      case "attribution":
        return this.#attribution(message);
      case "gap":
        return this.#add(message);
      case "missed": // with "epoch", hello has said that the session began again
        return message.why === "epoch" ? "nothing" : this.#add(message);
      case "vad":
        this.speech = message.speech;
        return "state";
      case "lag":
        this.lagMs = message.lag_ms;
        return "state";
      case "eos":
        this.ended = message.reason;
        this.partials = [];
        return "state";
      default:
        return "nothing"; // a type that is newer than this page
    }
  }

  /** Remove the items but the newest `nLeft`: a server that one returns to sends sounds again, but they stay away. */
  forget(nLeft = 0) {
    this.clearedMs = newestStart(this.items.splice(0, this.items.length - nLeft), this.clearedMs);
  }

  /** All finals, oldest first. */
  get finals() {
    return this.items.filter((item) => item.type === "final");
  }

  #hello(hello) {
    const isAgain = this.epoch !== null && this.epoch !== hello.epoch;
    const began = Date.parse(hello.started) || 0;
    if (this.epoch === null && !this.history) this.seq = hello.seq;
    if (isAgain) {
      this.seq = 0;
      this.offsetMs = Math.max(began - this.origin, this.finals.at(-1)?.end_ms ?? 0);
      if (this.items.length > 0) this.divider = { type: "divider", at: hello.started };
    }
    this.origin ??= began;
    this.caughtUpAt = hello.seq;
    this.epoch = hello.epoch;
    this.ended = null;
    this.partials = []; // the server sends them again
    this.nReplayed = 0;
    // Without the history, sounds of before are not wanted either, also if the server sends them again.
    if (!this.history) this.clearedMs = newestStart(this.items, this.clearedMs);
    if (isAgain) this.turns = this.attributions = [];
    return "state";
  }

  #final(final) {
    this.partials = this.partials.filter(({ channel, seg }) => channel !== final.channel || seg > final.seg);
    if (final.seq <= this.seq) return "state";
    this.seq = final.seq;
    const said = { ...later(final, this.offsetMs), run: this.epoch };
    if (this.attributions.length > 0) said.words = (said.words ?? []).map((word, n) => this.#attributed(word, n, said.seq));
    return this.#add(said, placeOf(this.items, said.start_ms, this.#begun, isSound));
  }

  /** Put a sound where it began; a later message says where it ended. */
  #sound(sound) {
    if (sound.start_ms <= this.clearedMs) return "nothing";
    const known = sameSound(this.items, sound, this.#begun);
    if (known < 0) return this.#add(sound, placeOf(this.items, sound.start_ms, this.#begun));
    this.items[known] = sound;
    return "state";
  }

  #partial(partial) {
    this.lagMs = partial.lag_ms;
    const others = this.partials.filter(({ channel }) => channel !== partial.channel);
    const own = partial.text === "" ? [] : [{ ...later(partial, this.offsetMs), run: this.epoch }];
    this.partials = [...others, ...own].sort((a, b) => a.start_ms - b.start_ms);
    return "partial";
  }

  /** Give the words of a revised stretch of time their speakers; texts stay as they are. */
  #speakers(message) {
    const { start_ms: from, end_ms: to } = moved(message, this.offsetMs);
    const turns = message.turns.map((turn) => moved(turn, this.offsetMs));
    const before = this.turns.filter((turn) => turn.start_ms < from && turn.end_ms > to - REMEMBERED_MS);
    this.turns = [...before.map((turn) => ({ ...turn, end_ms: Math.min(turn.end_ms, from) })), ...turns];
    const revised = this.items.length;
    let first = revised;
    for (let i = revised - 1; i >= 0 && !(this.items[i].end_ms <= from - REMEMBERED_MS); i--) {
      const { type, words = [], seq } = this.items[i];
      if (type === "divider") break; // times before it are not of this session
      if (type !== "final" || this.items[i].channel !== message.channel) continue;
      const speakers = speakersOf(words, this.turns, from);
      const again = words.map((word, n) => (word.end_ms <= from ? word : this.#attributed({ ...word, speaker: speakers[n] }, n, seq)));
      if (again.every(({ speaker }, n) => speaker === words[n].speaker)) continue;
      this.items[i] = { ...this.items[i], words: again };
      first = i;
    }
    if (first === revised) return "nothing";
    this.revised = first;
    return "revised";
  }

  /** Give words of a session the speaker that somebody has said. */
  #attribution(message) {
    // A server that one returns to sends all of them again. Each changes what those before it have made.
    if (this.nReplayed++ < this.attributions.length) return "nothing";
    this.attributions = [...this.attributions, message];
    const revised = this.items.length;
    let first = revised;
    for (let i = this.#begun; i < revised; i++) {
      const { type, words = [], seq } = this.items[i];
      if (type !== "final" || seq < message.seq || (message.to_seq !== 0 && seq > message.to_seq)) continue;
      this.items[i] = { ...this.items[i], words: words.map((word, n) => saidBy(word, n, seq, message)) };
      first = Math.min(first, i);
    }
    if (first === revised) return "nothing";
    this.revised = first;
    return "revised";
  }

  #attributed(word, n, seq) {
    return this.attributions.reduce((said, each) => saidBy(said, n, seq, each), word);
  }

  /** Note what stands for words of a final, which stays as it is. */
  #correction({ seq, first, last, text, exact }) {
    const n = this.items.findLastIndex((item, i) => i >= this.#begun && item.type === "final" && item.seq === seq);
    return this.correct({ item: n, first, last, text, exact });
  }

  /** Correct words of an item, also of one that the server does not know any more. */
  correct({ item: n, first, last, text, exact = false }) {
    if (!(n >= 0) || last >= (this.items[n].words ?? []).length) return "nothing";
    const known = this.items[n].corrections ?? [];
    if (known.some((each) => each.first === first && each.last === last && each.text === text && each.exact === exact)) return "nothing";
    const others = known.filter((each) => each.last < first || each.first > last);
    this.items[n] = { ...this.items[n], corrections: [...others, { first, last, text, exact }] };
    this.revised = n;
    return "revised";
  }

  /** The first item of this run of the session: numbers of finals are those of one run. */
  get #begun() {
    return this.divider ? this.items.length : this.items.findLastIndex(({ type }) => type === "divider") + 1;
  }

  /** The place of words of item `n` as the server knows it: {seq, first, last}, or {} if it does not. */
  place({ item: n, first, last }) {
    return n >= this.#begun ? { seq: this.items[n].seq, first, last } : {};
  }

  /** Where words are in the newest final that has them: {item, first, last}, or {} if none has. */
  find(heard) {
    const wanted = letters(heard);
    for (let item = this.items.length - 1; item >= 0; item--) {
      const { words = [] } = this.items[item];
      for (let first = 0; first < words.length; first++) {
        let last = first;
        let text = letters(words[first].text);
        while (text.length < wanted.length && last + 1 < words.length) text += letters(words[++last].text);
        if (text === wanted && text !== "") return { item, first, last };
      }
    }
    return {};
  }

  #add(item, at = this.items.length) {
    this.newest = item;
    if (this.divider !== null || at === this.items.length) {
      if (this.divider !== null) this.items.push(this.divider);
      this.divider = null;
      this.items.push(item);
      return "item";
    }
    this.items.splice(at, 0, item);
    this.revised = at;
    return "revised";
  }
}

/** When the newest of these items begins that has a place in the transcript's time; `otherwise`: at least. */
function newestStart(items, otherwise) {
  return items.reduce((most, { type, start_ms }) => (type === "final" || isSound({ type }) ? Math.max(most, start_ms) : most), otherwise);
}

function later(event, ms) {
  if (ms === 0) return event;
  return { ...moved(event, ms), words: (event.words ?? []).map((word) => moved(word, ms)) };
}

/** A word of a final with its speaker after an attribution (docs/protocol.md). */
function saidBy(word, n, seq, { speaker, seq: from, first, to_seq: to, last, was }) {
  const isBefore = seq < from || (seq === from && n < first);
  const isBehind = to !== 0 && (seq > to || (seq === to && n > last));
  if (isBefore || isBehind || (was !== 0 && was !== word.speaker)) return word;
  return { ...word, speaker: speaker === 0 ? undefined : speaker };
}

const letters = (text) => text.toLowerCase().replace(/[^\p{L}\p{M}\p{N}]/gu, "");

/** A final with the corrections in it: such a word has what it `was`, and the marks around that. */
export function corrected(final) {
  let { text } = final;
  const words = (final.words ?? []).map((word, n) => ({ ...word, first: n, last: n }));
  for (const { first, last, text: meant, exact } of (final.corrections ?? []).toSorted((a, b) => b.first - a.first)) {
    const places = placed(text, words.slice(0, last + 1));
    if (places.length <= last) continue;
    const { from } = places[first];
    const { to } = places[last];
    const was = text.slice(from, to);
    const [, before, after] = exact ? ["", "", ""] : /^([\p{Ps}\p{Pi}"'¿¡]*).*?(\p{P}*)$/su.exec(was);
    const one = { ...words[first], text: `${before}${meant}${after}`, end_ms: words[last].end_ms, last, was };
    if (one.text === was) continue; // somebody has undone a correction
    const rest = one.text === "" && /(^|\s)$/.test(text.slice(0, from)) ? text.slice(to).trimStart() : text.slice(to);
    text = text.slice(0, from) + one.text + rest;
    words.splice(first, last - first + 1, one);
  }
  return { ...final, text: text.trimEnd(), words };
}

const moved = (timed, ms) => ({ ...timed, start_ms: timed.start_ms + ms, end_ms: timed.end_ms + ms });

/** Who talks while a word is said, and for how many ms, or who talks nearest to it. */
function talking(turns, { start_ms, end_ms }) {
  const shared = new Map();
  let nearest = { ms: Infinity, speaker: undefined };
  for (const turn of turns) {
    const ms = Math.min(end_ms, turn.end_ms) - Math.max(start_ms, turn.start_ms);
    if (ms > 0) shared.set(turn.speaker, (shared.get(turn.speaker) ?? 0) + ms);
    if (-ms < nearest.ms || (-ms === nearest.ms && turn.speaker < nearest.speaker)) nearest = { ms: -ms, speaker: turn.speaker };
  }
  if (shared.size === 0 && nearest.speaker !== undefined) shared.set(nearest.speaker, 0);
  return shared;
}

const ENDS = /[.?!…。？！]["'”’)\]»」』]*$/u; // a sentence

/** The speaker who has most, or undefined. */
const most = (shares) => [...shares].reduce((best, each) => (each[1] > (best?.[1] ?? -1) ? each : best), undefined)?.[0];

/**
 * Returns the speakers of words, of which those until `from` keep theirs: who talks most meanwhile,
 * but of a sentence one person, if that one talks during all of it.
 */
function speakersOf(words, turns, from) {
  const speakers = [];
  for (let first = 0; first < words.length; first = speakers.length) {
    const n = words.slice(first).findIndex(({ text }) => ENDS.test(text));
    const sentence = n < 0 ? words.slice(first) : words.slice(first, first + n + 1);
    const shares = sentence.map((word) => (word.end_ms > from ? talking(turns, word) : new Map(word.speaker ? [[word.speaker, word.end_ms - word.start_ms]] : [])));
    const sum = (who) => shares.reduce((ms, each) => ms + each.get(who), 0);
    const through = [...shares[0].keys()].filter((who) => shares.every((each) => each.has(who)));
    const one = most(through.map((who) => [who, sum(who)]));
    speakers.push(...shares.map((each, i) => one ?? most(each) ?? sentence[i].speaker));
  }
  return speakers;
}

/**
 * Returns the place of each word in a text: [{from, to, prob, final, speaker}], in order.
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
    const { text: _, start_ms, end_ms, ...rest } = word;
    places.push({ ...rest, from, to: at });
  }
  return places;
}

const BEHIND = /^[\p{M}、。，．：；？！」』）】〉》・ーっゃゅょッャュョ々…ะาำๅๆฯະາຳຽໆຯ\u200d]/u;
const ASAT = /^.\u103a/u;
const BEFORE = /[「『（【〈《เแโใไເແໂໃໄ\u1039\u17d2\u200d]$/u;

/** Whether no line should end between two texts without a blank between them (streamd/sinks/text.py). */
export const belongs = (before, after) => BEHIND.test(after) || ASAT.test(after) || BEFORE.test(before);

/** The direction of a text in a language, since a foreign name may begin it; of its first letter if none is known. */
export const directionOf = (code) => (code === "" ? "auto" : /^(ar|ckb|dv|fa|he|ps|sd|ug|ur|yi)\b/.test(code) ? "rtl" : "ltr");

/** Whether a text is in a script without blanks between words. */
export const isUnspaced = (text) => UNSPACED.test(text);

const SCRIPTS = "Latin Cyrillic Greek Arabic Hebrew Devanagari Bengali Tamil Thai Hangul Hiragana Katakana Han".split(" ");
const SCRIPT = SCRIPTS.map((name) => new RegExp(`\\p{Script=${name}}`, "u"));

/** The script of a text's first letter: a number that only equals its own; -1 if there is none. */
export function script(text) {
  const letter = /\p{L}/u.exec(text)?.[0];
  if (letter === undefined) return -1;
  const found = SCRIPT.findIndex((each) => each.test(letter));
  return found > SCRIPTS.indexOf("Hangul") ? SCRIPTS.length : found; // Japanese has three
}

/** 83000 -> "1:23", 3723000 -> "1:02:03". */
export function clock(ms) {
  const s = Math.floor(ms / 1000);
  const [hours, minutes, seconds] = [Math.floor(s / 3600), Math.floor(s / 60) % 60, s % 60];
  const two = (n) => String(n).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(seconds)}` : `${minutes}:${two(seconds)}`;
}

/** A name for a session that begins now: "Chrome-20261122-223705". */
export function sessionName(source, now = new Date()) {
  const two = (n) => String(n).padStart(2, "0");
  const day = `${now.getFullYear()}${two(now.getMonth() + 1)}${two(now.getDate())}`;
  return `${source}-${day}-${two(now.getHours())}${two(now.getMinutes())}${two(now.getSeconds())}`;
}

/** How people read the name of a session: "Chrome, 22:37", with the date unless it is today's. */
export function label(name, now = new Date()) {
  if (name === "live") return "Live";
  const [, source, day, hours, minutes] = /^(.+)-(\d{8})-(\d\d)(\d\d)\d\d(?:-[0-9a-f]{8})?$/.exec(name) ?? [];
  if (source === undefined) return name;
  const isToday = sessionName("", now).startsWith(`-${day}-`);
  const date = isToday ? "" : `${day.slice(0, 4)}-${day.slice(4, 6)}-${day.slice(6)} `;
  return `${source}, ${date}${hours}:${minutes}`;
}
