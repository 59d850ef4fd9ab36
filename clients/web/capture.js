// AudioWorklet: turns the microphone's blocks into 100 ms of 16 kHz PCM. Runs on the audio thread.

import { Resampler, pcm16 } from "./resampler.js";

const BLOCK = 1600;

class Capture extends AudioWorkletProcessor {
  #resampler = new Resampler(sampleRate, 16_000);
  #waiting = new Int16Array(0);

  constructor() {
    super();
    this.port.onmessage = () => {
      this.port.postMessage(this.#waiting); // the recording ends: send what is left
      this.#waiting = new Int16Array(0);
    };
  }

  process([channels]) {
    if (channels.length === 0) return true; // the device is missing for a moment
    const mono = new Float32Array(channels[0].length);
    for (const channel of channels) channel.forEach((x, i) => (mono[i] += x / channels.length));
    const fresh = pcm16(this.#resampler.push(mono));
    const all = new Int16Array(this.#waiting.length + fresh.length);
    all.set(this.#waiting);
    all.set(fresh, this.#waiting.length);
    let from = 0;
    for (; from + BLOCK <= all.length; from += BLOCK) {
      const block = all.slice(from, from + BLOCK);
      this.port.postMessage(block, [block.buffer]);
    }
    this.#waiting = all.slice(from);
    return true;
  }
}

registerProcessor("streamd-capture", Capture);
