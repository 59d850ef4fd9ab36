// The microphone of this device as a session of its own. What the server has not acknowledged is
// kept, so that a broken connection loses nothing: the next one goes on behind the last `ack`.

import { open } from "./connection.js";

const RATE = 16_000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;
const KEPT_MS = 300_000; // audio held back while there is no connection, at most

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

/** Audio on its way to the server. */
class Sending {
  #socket = null;
  #session = null;
  #blocks = []; // not acknowledged yet, oldest first
  #first = 0; // place in the stream, in samples, of the first of them
  #next = 0; // of what comes next
  #stopped = false;
  #waitMs = FIRST_WAIT_MS;

  constructor(told, gaveUp) {
    this.told = told;
    this.gaveUp = gaveUp;
    this.#connect();
  }

  send(block) {
    this.#blocks.push(block);
    this.#next += block.length;
    if (this.#socket?.ready) this.#socket.send(block);
    // Without a server for so long: the oldest goes, and the server will say that it is missing.
    while (this.#next - this.#first > (KEPT_MS / 1000) * RATE) this.#drop();
  }

  stop() {
    this.#stopped = true;
    if (this.#socket?.ready) this.#socket.send('{"type":"stop"}');
  }

  #drop() {
    this.#first += this.#blocks.shift().length;
  }

  #connect() {
    const again = this.#session === null ? {} : { session: this.#session, samples: String(this.#first) };
    const socket = open({ role: "ingest", ...again });
    this.#socket = socket;
    let refused = null;
    let ended = false;
    socket.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      if (message.type === "hello") this.#begin(socket, message);
      if (message.type === "ack") this.#acknowledged(message.samples);
      if (message.type === "error" && message.fatal) refused = message;
      if (message.type === "eos") ended = true;
    };
    socket.onclose = () => {
      if (refused !== null) this.told.failed(`The server refused: ${refused.message}`);
      if (refused !== null || ended) return this.#stopped || this.gaveUp();
      this.#socket = null;
      setTimeout(() => this.#connect(), this.#waitMs);
      this.#waitMs = Math.min(2 * this.#waitMs, LONGEST_WAIT_MS);
    };
  }

  #begin(socket, hello) {
    this.#waitMs = FIRST_WAIT_MS;
    if (this.#session !== hello.session) this.told.named(hello.session);
    this.#session = hello.session;
    socket.send(JSON.stringify({ type: "start", encoding: "pcm_s16le", rate: RATE, channels: 1 }));
    socket.ready = true;
    for (const block of this.#blocks) socket.send(block);
    if (this.#stopped) socket.send('{"type":"stop"}');
  }

  #acknowledged(samples) {
    while (this.#blocks.length > 0 && this.#first + this.#blocks[0].length <= samples) this.#drop();
  }
}
