// Resamples from the device's rate to 16 kHz without drift. Pure.
//
// The ratio of two whole rates is kept as a fraction, so that the n-th sample out is always taken
// at exactly n * from / to samples in, for hours, however the input is cut into blocks: rounding
// per block of 128 samples, as is usual, gains or loses half a minute an hour. A windowed sinc in
// one table per phase (polyphase) removes frequencies that 16 kHz cannot carry.

const HALF_WIDTH = 16; // zero crossings on each side

const gcd = (a, b) => (b === 0 ? a : gcd(b, a % b));

export class Resampler {
  #table;
  #nTaps;
  #up;
  #down;
  #buffer; // input that later outputs still need
  #start = 0; // position of buffer[0] in the input, in samples; silence before 0
  #n = 0; // samples returned so far

  /** `fromHz`, `toHz`: whole numbers. */
  constructor(fromHz, toHz) {
    const common = gcd(fromHz, toHz);
    this.#up = toHz / common;
    this.#down = fromHz / common;
    const cutoff = 0.94 * Math.min(1, toHz / fromHz); // of the input's Nyquist frequency
    const half = Math.ceil(HALF_WIDTH / cutoff);
    this.#nTaps = 2 * half;
    this.#table = Array.from({ length: this.#up }, (_, phase) => taps(half, phase / this.#up, cutoff));
    this.#buffer = new Float32Array(half - 1);
    this.#start = -(half - 1);
  }

  /** Resample the next block (Float32Array); the filter state is kept between calls. */
  push(block) {
    const input = new Float32Array(this.#buffer.length + block.length);
    input.set(this.#buffer);
    input.set(block, this.#buffer.length);
    const end = this.#start + input.length;
    const output = [];
    for (;;) {
      const place = this.#n * this.#down; // in units of 1/up input samples
      const first = Math.floor(place / this.#up) - this.#nTaps / 2 + 1;
      if (first + this.#nTaps > end) {
        const from = Math.min(first - this.#start, input.length);
        this.#buffer = input.slice(from);
        this.#start += from;
        return Float32Array.from(output);
      }
      const weights = this.#table[place % this.#up];
      let sum = 0;
      for (let i = 0; i < this.#nTaps; i++) sum += weights[i] * input[first - this.#start + i];
      output.push(sum);
      this.#n += 1;
    }
  }
}

/** Return the filter weights for a position `fraction` of a sample after the middle one. */
function taps(half, fraction, cutoff) {
  const weights = new Float32Array(2 * half);
  let total = 0;
  for (let i = 0; i < weights.length; i++) {
    const x = i - half + 1 - fraction;
    const window = Math.abs(x) >= half ? 0 : Math.cos((Math.PI * x) / (2 * half)) ** 2;
    const sinc = x === 0 ? 1 : Math.sin(Math.PI * cutoff * x) / (Math.PI * cutoff * x);
    weights[i] = sinc * window;
    total += weights[i];
  }
  return weights.map((w) => w / total);
}

/** Convert Float32 in -1 to 1 to little-endian 16 bit PCM (Int16Array). */
export function pcm16(samples) {
  return Int16Array.from(samples, (x) => Math.round(32767 * Math.max(-1, Math.min(1, x))));
}
