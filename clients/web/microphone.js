// Sends the microphone of this device as a session of its own. Audio that the server has not
// acknowledged is kept, so a broken connection loses nothing: the next one resumes after the last
// `ack`.

import { open, refusal } from "./connection.js";

const RATE = 16_000;
const FIRST_WAIT_MS = 500;
const MAX_WAIT_MS = 10_000;
const MAX_KEPT_MS = 300_000; // audio kept while there is no connection
const TEMPORARY = new Set(["slow", "session_busy", "too_many_streams", "replaced"]);

export class Microphone {
  #context = null;
  #stream = null;
  #capture = null;
  #sending = null;

  /** `callbacks`: `named(session)`, `level(0..1)`, `changed(on)` and `failed(why)`. */
  constructor(callbacks) {
    this.callbacks = callbacks;
  }

  get on() {
    return this.#context !== null;
  }

  /** Ask the user for the microphone, and send its audio until `stop`. */
  async start() {
    if (!navigator.mediaDevices) {
      return this.callbacks.failed("Browsers allow the microphone only on localhost and on https pages.");
    }
    try {
      this.#context = new AudioContext();
      this.#stream = await navigator.mediaDevices.getUserMedia({
        audio: { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false },
      });
      await this.#context.audioWorklet.addModule("capture.js");
    } catch (error) {
      this.#release();
      return this.callbacks.failed(`Cannot use the microphone: ${error.message}`);
    }
    this.#sending = new Sending(this.callbacks, () => this.stop());
    this.#capture = new AudioWorkletNode(this.#context, "streamd-capture", { numberOfOutputs: 0 });
    this.#capture.port.onmessage = ({ data }) => {
      this.#sending.send(data);
      this.callbacks.level(data.reduce((most, x) => Math.max(most, Math.abs(x)), 0) / 32768);
    };
    this.#context.createMediaStreamSource(this.#stream).connect(this.#capture);
    this.callbacks.changed(true);
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
  #session = null;
  #epoch = null;
  #blocks = []; // not acknowledged yet, oldest first
  #first = 0; // number of the first sample of the first of them
  #n = 0; // samples in all of them
  #stopped = false;
  #waitMs = FIRST_WAIT_MS;

  constructor(callbacks, gaveUp) {
    this.callbacks = callbacks;
    this.gaveUp = gaveUp;
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

  #drop() {
    const { length } = this.#blocks.shift();
    this.#first += length;
    this.#n -= length;
  }

  #connect() {
    const again = this.#session === null ? {} : { session: this.#session };
    if (this.#epoch !== null) again.epoch = this.#epoch;
    const socket = open({ role: "ingest", ...again });
    let isMute = true;
    let isKnown = false;
    let over = false;
    let refused = "";
    socket.onmessage = ({ data }) => {
      isMute = false;
      const message = JSON.parse(data);
      if (message.type === "hello") {
        isKnown = message.epoch === this.#epoch;
        this.#hello(socket, message);
      } else if (message.type === "started") {
        if (!isKnown) this.#first = message.samples; // a new run of the session counts from what we still have
        this.#resume(socket, message.samples);
      } else if (message.type === "ack") {
        this.#acknowledged(message.samples);
      } else if (message.type === "eos") {
        over = message.reason !== "shutdown" && message.reason !== "disconnect";
      } else if (message.type === "error" && message.fatal && !TEMPORARY.has(message.code)) {
        if (message.code === "session_over") over = this.#beginAgain(message.heard_ms ?? 0);
        else refused = message.message;
      }
    };
    socket.onclose = async () => {
      this.#socket = null;
      if (isMute && this.#session === null) refused = await refusal({ role: "ingest" });
      if (refused) this.callbacks.failed(`The server refused: ${refused}`);
      if (refused || over) return this.#stopped || this.gaveUp();
      setTimeout(() => this.#connect(), this.#waitMs);
      this.#waitMs = Math.min(2 * this.#waitMs, MAX_WAIT_MS);
    };
  }

  #hello(socket, { session, epoch }) {
    this.#waitMs = FIRST_WAIT_MS;
    if (this.#session !== session) this.callbacks.named(session);
    this.#session = session;
    this.#epoch = epoch;
    const audio = { encoding: "pcm_s16le", rate: RATE, channels: 1, samples: this.#first };
    socket.send(JSON.stringify({ type: "start", ...audio }));
  }

  /** Send everything from this sample on. */
  #resume(socket, from) {
    this.#socket = socket;
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
    this.#session = this.#epoch = null;
    this.#first = 0;
    return this.#stopped && this.#n <= RATE / 1000; // `heard_ms` is rounded down
  }
}
