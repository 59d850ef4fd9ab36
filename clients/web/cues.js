// Cuts finals into subtitle cues, exactly as streamd does for `-o talk.srt` (streamd/sinks/cues.py,
// where the rules are explained). Pure.

import { placed } from "./transcript.js";

const LINE_CELLS = 42;
const MAX_LINES = 2;
const MAX_CUE_MS = 7000;
const MIN_CUE_MS = 1000;
const PAUSE_MS = 500;
const ORPHAN_CELLS = 12;

export const SENTENCE_END = /(?:[?!…。？！]|(?<!\b(?:M[rs]|Mrs|Dr|St|Prof|[A-HJ-Z]))\.)["'”’»)」』]*$/u;
const CLAUSE_END = /[,;:–—、，；：]["'”’»)」』]*$/u;
const BREAKS = /[\t\n\v\f\r\x85\u2028\u2029]/g;
const UNSAFE = /[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\p{Cs}/gu;
const ZERO = /[\p{Mn}\p{Me}\u200b-\u200f\u2060-\u2064\ufeff]/u;
const WIDE =
  /\p{Emoji_Presentation}|[\u1100-\u115f\u2e80-\u303e\u3041-\u4dbf\u4e00-\ua4cf\ua960-\ua97c\uac00-\ud7a3\uf900-\ufaff\ufe10-\ufe19\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6\u{16fe0}-\u{18cff}\u{1b000}-\u{1b2fb}\u{20000}-\u{3fffd}]/u;
const GRAPHEMES = new Intl.Segmenter(undefined, { granularity: "grapheme" });

/** One line without control characters. */
export const clean = (text) => text.replace(BREAKS, " ").replace(UNSAFE, "\ufffd");

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const graphemes = (text) => [...GRAPHEMES.segment(text)].map(({ segment }) => segment);

/** How many Latin letters the text is as wide as. */
const width = (text) => sum([...text].map((char) => (ZERO.test(char) ? 0 : WIDE.test(char) ? 2 : 1)));

/** Cut a word where it does not fit into a line. */
function chunks(word) {
  const found = [""];
  for (const grapheme of graphemes(word)) {
    if (found.at(-1) !== "" && width(found.at(-1)) + width(grapheme) > LINE_CELLS) found.push("");
    found[found.length - 1] += grapheme;
  }
  return found;
}

/** The words of a text with their share of its time; long ones are cut. */
function split(text, start_ms, end_ms) {
  const parts = [...clean(text).matchAll(/(\s*)(\S+)/g)].flatMap(([, blank, word]) =>
    chunks(word).map((part, i) => ({ blank: blank && i === 0 ? " " : "", text: part })),
  );
  const cells = Math.max(1, sum(parts.map((part) => width(part.text))));
  let done = 0;
  const time = () => start_ms + Math.floor(((end_ms - start_ms) * done) / cells);
  return parts.map((part) => {
    const begins = time();
    done += width(part.text);
    return { ...part, start_ms: begins, end_ms: time() };
  });
}

function pieces(final) {
  const found = [];
  let at = 0;
  let t_ms = final.start_ms;
  placed(final.text, final.words).forEach(({ to }, i) => {
    const { start_ms, end_ms } = final.words[i];
    t_ms = Math.max(t_ms, end_ms);
    found.push(...split(final.text.slice(at, to), start_ms, t_ms));
    at = to;
  });
  return [...found, ...split(final.text.slice(at), t_ms, Math.max(t_ms, final.end_ms))];
}

/** The cells that the first 0, 1, 2 ... pieces take within a line. */
function running(list) {
  const cells = [0];
  for (const { blank, text } of list) cells.push(cells.at(-1) + blank.length + width(text));
  return cells;
}

/** How many pieces fit into one cue; at least one. */
function room(list) {
  let line = 1;
  let used = 0;
  for (const [n, { blank, text, end_ms }] of list.entries()) {
    if (n > 0 && end_ms - list[0].start_ms > MAX_CUE_MS) return n;
    const cells = width(text);
    if (used > 0 && used + blank.length + cells > LINE_CELLS) {
      line += 1;
      used = 0;
      if (line > MAX_LINES) return n;
    }
    used += cells + (used > 0 ? blank.length : 0);
  }
  return list.length;
}

/** How good a break after the first `k` pieces is, from 0 to 1. */
function worthOfBreak(list, k) {
  const { text, end_ms } = list[k - 1];
  if (SENTENCE_END.test(text)) return 1;
  return CLAUSE_END.test(text) || list[k].start_ms - end_ms >= PAUSE_MS ? 0.5 : 0;
}

/** How many of the pieces the next cue takes. */
function cut(list) {
  const n = room(list);
  if (n === list.length) return n;
  const cells = running(list.slice(0, n + ORPHAN_CELLS));
  const worth = (k) => cells[k] / cells[n] + worthOfBreak(list, k) - (cells.at(-1) - cells[k] < ORPHAN_CELLS ? 0.5 : 0);
  let best = 1;
  for (let k = 2; k <= n; k++) if (worth(k) > worth(best)) best = k;
  return best;
}

/** Break a cue into as few lines as possible, of similar length, at a clause if one is near. */
function lines(list) {
  const cells = running(list);
  const n = list.length;
  const length = (i, k) => cells[k] - cells[i] - list[i].blank.length;
  const isWorse = (a, b) => {
    const [over, under] = [a.longest > LINE_CELLS, b.longest > LINE_CELLS];
    return over === under ? a.longest - 10 * a.worth > b.longest - 10 * b.worth : over;
  };
  let ways = list.map((_, i) => ({ longest: length(i, n), worth: 0, ends: [n] }));
  while (ways[0].longest > LINE_CELLS && ways.length > 1) {
    ways = ways.slice(0, -1).map((_, i) => {
      let best = null;
      for (let k = i + 1; k < ways.length && (k === i + 1 || length(i, k) <= LINE_CELLS); k++) {
        const { longest, worth, ends } = ways[k];
        const way = { longest: Math.max(length(i, k), longest), worth: worthOfBreak(list, k) + worth, ends: [k, ...ends] };
        if (best === null || isWorse(best, way)) best = way;
      }
      return best;
    });
  }
  return ways[0].ends.map((end, i, ends) => list.slice(ends[i - 1] ?? 0, end));
}

/** All cues of the finals: [{start_ms, end_ms, lines}], in order and without overlap. */
export function cues(finals) {
  const found = [];
  let free_ms = 0;
  for (const final of finals) {
    let rest = pieces(final);
    while (rest.length > 0) {
      const n = cut(rest);
      const shown = rest.slice(0, n);
      rest = rest.slice(n);
      const start = Math.max(shown[0].start_ms, free_ms);
      const limit = rest[0]?.start_ms ?? Math.max(final.end_ms, shown.at(-1).end_ms);
      const end = Math.min(Math.max(shown.at(-1).end_ms, start + MIN_CUE_MS), limit);
      free_ms = Math.max(end, start + 1);
      const texts = lines(shown).map((line) => line.map(({ blank, text }, i) => (i > 0 ? blank : "") + text).join(""));
      found.push({ start_ms: start, end_ms: free_ms, lines: texts });
    }
  }
  return found;
}
