// Sends a microphone, or what this device plays, as a session of its own. Audio that the server has not
// acknowledged is kept, so a broken connection loses nothing: the next one resumes after the last
// `ack`.

import { N_TRIES, open, refusal, unreachable } from "./connection.js";
import { sessionName } from "./transcript.js";

const RATE = 16_000;
const FIRST_WAIT_MS = 500;
const MAX_WAIT_MS = 10_000;
const MAX_KEPT_MS = 300_000; // audio kept while there is no connection
const MUTE_BLOCKS = 30; // of 100 ms
const TEMPORARY = new Set(["slow", "session_busy", "too_many_streams", "replaced"]);

const BROWSERS = { Edg: "Edge", OPR: "Opera", Firefox: "Firefox", Chrome: "Chrome", Safari: "Safari" };

/** What a session of this page is called after: the browser, or that it is no microphone. */
function sourceName(source) {
  const [found] = Object.entries(BROWSERS).filter(([mark]) => navigator.userAgent.includes(mark));
  return source === "screen" ? "Sound" : (found?.[1] ?? "Browser");
}

/** A name for a new session, which nobody guesses: other visitors may know no more than their own. */
function newName(source) {
  const digits = [...crypto.getRandomValues(new Uint8Array(4))].map((byte) => byte.toString(16).padStart(2, "0"));
  return `${sessionName(sourceName(source))}-${digits.join("")}`;
}

/** Ask the user for a microphone by its id ("": any), or for the sound of a tab ("screen"). */
async function listenTo(source) {
  if (source !== "screen") {
    const id = source === "" ? {} : { deviceId: { exact: source } };
    const audio = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false };
    return navigator.mediaDevices.getUserMedia({ audio: { ...audio, ...id } });
  }
  // Browsers give sound only together with a picture, which is not looked at.
  const audio = { echoCancellation: false, noiseSuppression: false, autoGainControl: false, suppressLocalAudioPlayback: false };
  const stream = await navigator.mediaDevices.getDisplayMedia({ video: { frameRate: 1 }, audio, systemAudio: "include" });
  if (stream.getAudioTracks().length > 0) return stream;
  stream.getTracks().forEach((track) => track.stop());
  throw new DOMException("no sound", "NoSound");
}

/** Say what a user can do about an error. */
function explained({ name, message }, source) {
  const what = source === "screen" ? "the sound" : "the microphone";
  const known = {
    NotAllowedError: source === "screen" ? "Nothing was shared." : "This page may not use the microphone: allow it beside the page's address.",
    NotFoundError: "There is no microphone: plug one in.",
    OverconstrainedError: "This microphone is gone: choose another in Settings.",
    NotReadableError: `The system does not give ${what} to the browser: another program may be using it.`,
    NoSound: "No sound was shared: choose a tab, and switch its sound on where the browser asks.",
  };
  return known[name] ?? `Cannot use ${what}: ${message}`;
}

export class Microphone {
  #context = null;
  #stream = null;
  #capture = null;
  #sending = null;
  #nMute = 0;

  /** What a session is called that this page may begin under that name, or under a similar one. */
  named = (name) => name;

  /** `callbacks`: `named(session)`, `level(0..1)`, `changed(on)` and `failed(why)`. */
  constructor(callbacks) {
    this.callbacks = callbacks;
  }

  get on() {
    return this.#context !== null;
  }

  /** Whether words of the session of this name are said into this microphone, and may be corrected. */
  feeds(session) {
    return this.#sending !== null && this.#sending.session === session;
  }

  /** Whether voices of those whom this page names may be kept. */
  get keepsVoices() {
    return this.#sending?.keepsVoices === true;
  }

  /** Send a message of a client: `correct` or `name` (docs/protocol.md). */
  say(message) {
    this.#sending.say(message);
  }

  /** Change what was chosen for the session (`update` of docs/protocol.md); nothing if there is none. */
  update(choices) {
    this.#sending?.update(choices);
  }

  /**
   * Ask the user for the sound, and send it until `stop`.
   *
   * `source`: a device's id, "" for any microphone, or "screen"; `choices`: fields of `start`;
   * `session`: the one to go on with.
   */
  async start(source = "", choices = {}, session = "") {
    const cause = await unreachable();
    if (cause) return this.callbacks.failed(`${cause[0].toUpperCase()}${cause.slice(1)}.`);
    try {
      this.#context = new AudioContext();
      this.#stream = await listenTo(source);
      await this.#context.audioWorklet.addModule("capture.js");
    } catch (error) {
      this.#release();
      return this.callbacks.failed(explained(error, source));
    }
    for (const track of this.#stream.getTracks()) {
      track.onended = () => {
        this.callbacks.failed(source === "screen" ? "Sharing has ended." : "The microphone was unplugged.");
        this.stop();
      };
    }
    this.#sending = new Sending(this.callbacks, () => this.stop(), { session: session || this.named(newName(source)), choices });
    this.#capture = new AudioWorkletNode(this.#context, "streamd-capture", { numberOfOutputs: 0 });
    this.#capture.port.onmessage = ({ data }) => this.#heard(data, source);
    this.#context.createMediaStreamSource(this.#stream).connect(this.#capture);
    this.#nMute = 0;
    this.callbacks.changed(true);
  }

  #heard(block, source) {
    this.#sending.send(block);
    const level = block.reduce((most, x) => Math.max(most, Math.abs(x)), 0) / 32768;
    this.callbacks.level(level);
    // A quiet room has noise. A tab that plays nothing has none.
    this.#nMute = level > 0 ? 0 : this.#nMute + 1;
    if (this.#nMute === MUTE_BLOCKS && source !== "screen") {
      this.callbacks.failed("The microphone gives only silence: is it muted?");
    }
  }

  /** Send the rest, let the server make it final, and release the microphone. */
  async stop() {
    const sending = this.#sending;
    if (sending === null) return;
    this.#sending = null;
    await new Promise((resolve) => {
      this.#capture.port.onmessage = ({ data }) => {
        sending.send(data);
        if (data.length < RATE / 10) resolve(); // the answer to "rest": a block that is not full
      };
      this.#capture.port.postMessage("rest");
    });
    sending.stop();
    this.#release();
  }

  #release() {
    this.#stream?.getTracks().forEach((track) => track.stop());
    this.#context?.close();
    this.#context = this.#stream = this.#capture = null;
    this.callbacks.changed(false);
  }
}

/**
 * Sends audio with numbered samples, as docs/protocol.md describes. What is not acknowledged is
 * kept, so a connection that breaks loses and repeats nothing.
 */
export class Sending {
  #socket = null; // open, and the server has said from which sample on it wants audio
  #wanted; // the session's name, as long as the server has given none
  session = null; // its name, once the server has given it
  #epoch = null;
  #blocks = []; // not acknowledged yet, oldest first
  #first = 0; // number of the first sample of the first of them
  #n = 0; // samples in all of them
  #stopped = false;
  #told = null; // choices that the server has got by "start"
  #nMute = 0; // connections in which the server said nothing, one after the other
  #waitMs = FIRST_WAIT_MS;

  /** `session`: its name, which the server chooses otherwise; `choices`: fields of `start`. */
  constructor(callbacks, gaveUp, { session = null, choices = {} } = {}) {
    this.callbacks = callbacks;
    this.gaveUp = gaveUp;
    this.#wanted = session;
    this.choices = choices;
    this.#connect();
  }

  send(block) {
    this.#blocks.push(block);
    this.#n += block.length;
    this.#socket?.send(block);
    // Without a server for this long: drop the oldest audio.
    while (this.#n > (MAX_KEPT_MS / 1000) * RATE) this.#drop();
  }

  stop() {
    this.#stopped = true;
    this.#socket?.send('{"type":"stop"}');
  }

  say(message) {
    if (this.#socket === null) return this.callbacks.failed("There is no connection to the server: try again soon.");
    this.#socket.send(JSON.stringify(message));
  }

  update(choices) {
    this.choices = { ...this.choices, ...choices };
    this.#socket?.send(JSON.stringify({ type: "update", ...choices }));
  }

  #drop() {
    const { length } = this.#blocks.shift();
    this.#first += length;
    this.#n -= length;
  }

  #connect() {
    const query = { role: "ingest" };
    if (this.session ?? this.#wanted) query.session = this.session ?? this.#wanted;
    if (this.#epoch !== null) query.epoch = this.#epoch;
    const socket = open(query);
    let isMute = true;
    let isKnown = false;
    let over = false;
    let refused = "";
    socket.onmessage = ({ data }) => {
      isMute = false;
      const message = JSON.parse(data);
      if (message.type === "hello") {
        isKnown = message.epoch === this.#epoch;
        this.keepsVoices = message.keeps_voices === true;
        this.#hello(socket, message);
      } else if (message.type === "started") {
        if (!isKnown) this.#first = message.samples; // a new run of the session counts from what we still have
        this.#resume(socket, message.samples);
      } else if (message.type === "ack") {
        this.#acknowledged(message.samples);
      } else if (message.type === "eos") {
        over = message.reason !== "shutdown" && message.reason !== "disconnect";
      } else if (message.type === "error" && message.fatal) {
        if (message.code === "session_over") over = this.#beginAgain(message.heard_ms ?? 0);
        else if (!TEMPORARY.has(message.code)) refused = `The server refused: ${message.message}`;
        else if (this.session === null) this.callbacks.failed(`Not captioned yet: ${message.message}`);
      } else if (message.code === "bad_option") {
        this.callbacks.failed(message.message); // a correction, or a name
      }
    };
    socket.onclose = async () => {
      this.#socket = null;
      this.#nMute = isMute ? this.#nMute + 1 : 0;
      if (isMute && (this.session === null || this.#nMute >= N_TRIES)) {
        const { status, why } = await refusal({ role: "ingest" });
        if (status === 403 || (status === 426 && this.#nMute >= N_TRIES)) refused = `Not captioned: ${why}`;
        else if (this.#nMute >= N_TRIES && why) this.callbacks.failed(`Not captioned yet: ${why}`);
      }
      if (refused) this.callbacks.failed(refused);
      if (refused || over) return this.#stopped || this.gaveUp();
      setTimeout(() => this.#connect(), this.#waitMs);
      this.#waitMs = Math.min(2 * this.#waitMs, MAX_WAIT_MS);
    };
  }

  #hello(socket, { session, epoch }) {
    this.#waitMs = FIRST_WAIT_MS;
    if (this.session !== session) this.callbacks.named(session);
    this.session = session;
    this.#epoch = epoch;
    const audio = { encoding: "pcm_s16le", rate: RATE, channels: 1, samples: this.#first };
    this.#told = this.choices;
    socket.send(JSON.stringify({ type: "start", ...audio, ...this.#told }));
  }

  /** Send everything from this sample on. */
  #resume(socket, from) {
    this.#socket = socket;
    const { hotwords } = this.choices;
    if (hotwords !== this.#told?.hotwords) this.update({ hotwords }); // chosen since then
    let at = this.#first;
    for (const block of this.#blocks) {
      const known = Math.max(0, from - at);
      if (known < block.length) socket.send(block.subarray(known));
      at += block.length;
    }
    if (this.#stopped) socket.send('{"type":"stop"}');
  }

  #acknowledged(samples) {
    while (this.#blocks.length > 0 && this.#first + this.#blocks[0].length <= samples) this.#drop();
  }

  /**
   * The server has ended the session: audio that it did not receive begins another one. Returns
   * whether there is no such audio and `stop` was called.
   */
  #beginAgain(heardMs) {
    const received = (heardMs * RATE) / 1000;
    this.#acknowledged(received);
    if (this.#blocks.length > 0 && this.#first < received) {
      this.#blocks[0] = this.#blocks[0].subarray(received - this.#first);
      this.#n -= received - this.#first;
    }
    this.session = this.#epoch = null;
    this.#first = 0;
    return this.#stopped && this.#n <= RATE / 1000; // `heard_ms` is rounded down
  }
}
