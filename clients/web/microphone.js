// The microphone of this device as a session of its own. What the server has not acknowledged is
// kept, so that a broken connection loses nothing: the next one goes on behind the last `ack`.

import { open } from "./connection.js";

const RATE = 16_000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;
const KEPT_MS = 300_000; // audio held back while there is no connection, at most
const PASSING = new Set(["slow", "session_busy", "too_many_streams", "replaced"]);

export class Microphone {
  #context = null;
  #stream = null;
  #capture = null;
  #sending = null;

  /** `named(session)`, `level(0..1)`, `changed(on)` and `failed(why)` are told what happens. */
  constructor(told) {
    this.told = told;
  }

  get on() {
    return this.#context !== null;
  }

  /** Ask the user for the microphone, and send what it hears until `stop`. */
  async start() {
    if (!navigator.mediaDevices) {
      return this.told.failed("Browsers give the microphone only to localhost and to https pages.");
    }
    try {
      this.#context = new AudioContext();
      this.#stream = await navigator.mediaDevices.getUserMedia({
        audio: { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false },
      });
      await this.#context.audioWorklet.addModule("capture.js");
    } catch (error) {
      this.#release();
      return this.told.failed(`No microphone: ${error.message}`);
    }
    this.#sending = new Sending(this.told, () => this.stop());
    this.#capture = new AudioWorkletNode(this.#context, "streamd-capture", { numberOfOutputs: 0 });
    this.#capture.port.onmessage = ({ data }) => {
      this.#sending.send(data);
      this.told.level(data.reduce((most, x) => Math.max(most, Math.abs(x)), 0) / 32768);
    };
    this.#context.createMediaStreamSource(this.#stream).connect(this.#capture);
    this.told.changed(true);
  }

  /** Send the rest, let the server make it final, and give the microphone back. */
  async stop() {
    const sending = this.#sending;
    if (sending === null) return;
    this.#sending = null;
    await new Promise((resolve) => {
      this.#capture.port.onmessage = ({ data }) => {
        sending.send(data);
        if (data.length < RATE / 10) resolve(); // the answer: what was left
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
    this.told.changed(false);
  }
}

/**
 * Audio on its way to the server, its samples numbered as docs/protocol.md says under "Resume
 * sending audio": what is not acknowledged is kept, and a connection that breaks costs and doubles none.
 */
export class Sending {
  #socket = null; // open, and told from which sample on it will hear us
  #session = null;
  #epoch = null;
  #blocks = []; // not acknowledged yet, oldest first
  #first = 0; // number of the first sample of the first of them
  #n = 0; // samples in all of them
  #stopped = false;
  #waitMs = FIRST_WAIT_MS;

  constructor(told, gaveUp) {
    this.told = told;
    this.gaveUp = gaveUp;
    this.#connect();
  }

  send(block) {
    this.#blocks.push(block);
    this.#n += block.length;
    this.#socket?.send(block);
    // Without a server for so long: the oldest goes.
    while (this.#n > (KEPT_MS / 1000) * RATE) this.#drop();
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
    let knowsUs = false;
    let over = false;
    let refused = "";
    socket.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      if (message.type === "hello") {
        knowsUs = message.epoch === this.#epoch;
        this.#hello(socket, message);
      } else if (message.type === "started") {
        if (!knowsUs) this.#first = message.samples; // it counts anew, from what we still have
        this.#goOn(socket, message.samples);
      } else if (message.type === "ack") {
        this.#acknowledged(message.samples);
      } else if (message.type === "eos") {
        over = message.reason !== "shutdown" && message.reason !== "disconnect";
      } else if (message.type === "error" && message.fatal && !PASSING.has(message.code)) {
        if (message.code === "session_over") over = this.#anew(message.heard_ms ?? 0);
        else refused = message.message;
      }
    };
    socket.onclose = () => {
      this.#socket = null;
      if (refused) this.told.failed(`The server refused: ${refused}`);
      if (refused || over) return this.#stopped || this.gaveUp();
      setTimeout(() => this.#connect(), this.#waitMs);
      this.#waitMs = Math.min(2 * this.#waitMs, LONGEST_WAIT_MS);
    };
  }

  #hello(socket, { session, epoch }) {
    this.#waitMs = FIRST_WAIT_MS;
    if (this.#session !== session) this.told.named(session);
    this.#session = session;
    this.#epoch = epoch;
    const audio = { encoding: "pcm_s16le", rate: RATE, channels: 1, samples: this.#first };
    socket.send(JSON.stringify({ type: "start", ...audio }));
  }

  /** Say what the server wants next: everything from this sample on. */
  #goOn(socket, from) {
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
   * The session did not wait for us any longer: what it has not heard begins another one. Returns
   * whether there is nothing more to say.
   */
  #anew(heardMs) {
    const heard = (heardMs * RATE) / 1000;
    this.#acknowledged(heard);
    if (this.#blocks.length > 0 && this.#first < heard) {
      this.#blocks[0] = this.#blocks[0].subarray(heard - this.#first);
      this.#n -= heard - this.#first;
    }
    this.#session = this.#epoch = null;
    this.#first = 0;
    return this.#stopped && this.#n <= RATE / 1000; // `heard_ms` is rounded down
  }
}
