// Cuts finals into subtitle cues, exactly as streamd does for `-o talk.srt` (streamd/sinks/cues.py,
// where the rules are explained). Pure.

import { belongs, placed } from "./transcript.js";

const LINE_CELLS = 42;
const MAX_LINES = 2;
const MAX_CUE_MS = 7000;
const MIN_CUE_MS = 1000;
const CELLS_PER_S = 17;
const LINGER_MS = 1500;
const APART_MS = 80;
const PAUSE_MS = 500;
const LONG_PAUSE_MS = 1000;
const ORPHAN_CELLS = 12;
const BINDING = new Set(
  (
    "a about after am an and any are as at be because been before between but by can could did do does er every " +
    "for from had has have he her his i if in into is it its may might must my no not of on or our over shall she " +
    "should so some than that the their they this through to uh um under very was we were when where which who " +
    "whose will with would you your"
  ).split(" "),
);
const OPENING = new Set(
  (
    "although and as at because before but by for from if in into nor on or since so than that though through " +
    "unless until when where whether which while who whose with without"
  ).split(" "),
);
const LATIN = /[-\u2010\u2011'\u2019A-Za-z\u00c0-\u024f]/;

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

/** Cut a word where it does not fit into a line, but not between what belongs together, if that fits. */
function chunks(word) {
  const found = [""];
  let kept = 0; // in the last chunk, where something begins that belongs to nothing before it
  for (const grapheme of graphemes(word)) {
    if (!belongs(found.at(-1), grapheme)) kept = found.at(-1).length;
    while (found.at(-1) !== "" && width(found.at(-1)) + width(grapheme) > LINE_CELLS) {
      const last = found.pop();
      const at = kept || last.length;
      found.push(last.slice(0, at), last.slice(at));
      kept = 0;
    }
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

/** The words, or where a language writes no blanks, the characters with what belongs to them. */
const pieces = (final) => together(together(spoken(final))); // a mark may tell that its letter belongs to what is before

function together(list) {
  const found = [];
  for (const piece of list) {
    const before = found.at(-1);
    const isOne = before && piece.blank === "" && belongs(before.text, piece.text);
    if (isOne && width(before.text) + width(piece.text) <= LINE_CELLS) {
      found[found.length - 1] = { ...before, text: before.text + piece.text, end_ms: piece.end_ms };
    } else found.push(piece);
  }
  return found;
}

function spoken(final) {
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

const pause = (list, k) => list[k].start_ms - list[k - 1].end_ms;

/** Whether there may be a break before piece `k`: not inside "self-evident". */
function mayBreak(list, k) {
  const [before, after] = [list[k - 1].text, list[k].text];
  const isInside = list[k].blank === "" && LATIN.test(before.at(-1)) && LATIN.test(after[0]);
  return !isInside || width(before) + width(after) > LINE_CELLS;
}

/** How good a break after the first `k` pieces is, from -1 to 1. */
function worthOfBreak(list, k) {
  const { text } = list[k - 1];
  const pause_ms = pause(list, k);
  if (SENTENCE_END.test(text)) return 1;
  if (CLAUSE_END.test(text) || pause_ms >= PAUSE_MS) return pause_ms < LONG_PAUSE_MS ? 0.5 : 0.75;
  if (BINDING.has(text.toLowerCase())) return -0.5;
  return OPENING.has(list[k].text.toLowerCase()) ? 0.3 : 0;
}

/** Where cues begin, and the end: the best way to cut all of the pieces. */
function cuts(list, length) {
  const n = list.length;
  const worth = list.map((_, k) => (k === 0 ? 0 : worthOfBreak(list, k)));
  const nPauses = [0];
  for (let k = 1; k < n; k++) nPauses.push(nPauses[k - 1] + (pause(list, k) >= LONG_PAUSE_MS ? 1 : 0));

  /** How far a cue that begins with piece `i` can go; at least over that piece. */
  const reach = (i) => {
    let [line, begin] = [1, i];
    for (let k = i + 1; k <= n; k++) {
      if (k - i > 1 && list[k - 1].end_ms - list[i].start_ms > MAX_CUE_MS) return k - 1;
      if (k - begin > 1 && length(begin, k) > LINE_CELLS) {
        [line, begin] = [line + 1, k - 1];
        if (line > MAX_LINES) return k - 1;
      }
    }
    return n;
  };

  const cost = (i, k) => {
    const spoken_ms = list[k - 1].end_ms;
    const free_ms = k === n ? LINGER_MS : Math.max(0, list[k].start_ms - spoken_ms);
    const shown_ms = Math.max(1, spoken_ms - list[i].start_ms + Math.min(free_ms, LINGER_MS));
    let bad = 0.5 + 0.1 * Math.max(0, Math.min((length(i, k) * 1000) / shown_ms, 40) - CELLS_PER_S);
    bad += 1 - Math.min(1, shown_ms / MIN_CUE_MS);
    bad += length(i, k) < ORPHAN_CELLS ? 0.6 : 0;
    bad += 1.5 * (nPauses[k - 1] - nPauses[i]);
    return k === n ? bad : bad + 1.2 * (1 - worth[k]);
  };

  const costs = Array(n + 1).fill(0);
  const nexts = Array(n + 1).fill(n);
  for (let i = n - 1; i >= 0; i--) {
    const last = reach(i);
    let best = Infinity;
    for (let k = last; k > i; k--) {
      const isAllowed = k === n || mayBreak(list, k);
      if (isAllowed && cost(i, k) + costs[k] < best) [best, nexts[i]] = [cost(i, k) + costs[k], k];
    }
    if (best === Infinity) [best, nexts[i]] = [cost(i, last) + costs[last], last];
    costs[i] = best;
  }
  const found = [0];
  while (found.at(-1) < n) found.push(nexts[found.at(-1)]);
  return found;
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
        if (k > i + 1 && !mayBreak(list, k)) continue;
        const { longest, worth, ends } = ways[k];
        const way = { longest: Math.max(length(i, k), longest), worth: worthOfBreak(list, k) + worth, ends: [k, ...ends] };
        if (best === null || isWorse(best, way)) best = way;
      }
      return best;
    });
  }
  return ways[0].ends.map((end, i, ends) => list.slice(ends[i - 1] ?? 0, end));
}

/** The end of a cue before the next one begins: apart, if its words leave the time. */
function ended(cue, next_ms) {
  const latest_ms = Math.max(next_ms - APART_MS, Math.min(cue.spoken_ms, next_ms), cue.start_ms + 1);
  return { ...cue, end_ms: Math.min(cue.end_ms, latest_ms) };
}

const wanted = (cells) => Math.max(MIN_CUE_MS, Math.floor((cells * 1000) / CELLS_PER_S));

/** When a cue whose words end at `spoken_ms` ends, if nothing follows. */
const end = (start_ms, spoken_ms, wanted_ms) =>
  Math.max(spoken_ms, Math.min(start_ms + wanted_ms, spoken_ms + LINGER_MS, start_ms + MAX_CUE_MS));

/** Who says most of the words; undefined if that is not known. */
function speakerOf(words) {
  const counts = new Map();
  for (const { speaker } of words) if (speaker) counts.set(speaker, (counts.get(speaker) ?? 0) + 1);
  return [...counts].reduce((most, each) => (each[1] > most[1] ? each : most), [undefined, 0])[0];
}

/** One cue in place of two, if the first could not be read before the second begins, or null. */
function joined(before, after) {
  const lines = [...before.lines, ...after.lines];
  const start_ms = before.start_ms;
  const spoken_ms = Math.max(after.spoken_ms, after.start_ms + 1);
  const isLong = ended(before, after.start_ms).end_ms - start_ms >= MIN_CUE_MS;
  const fits = lines.length <= MAX_LINES && spoken_ms - start_ms <= MAX_CUE_MS;
  if (isLong || !fits || before.speaker !== after.speaker) return null;
  return { ...after, start_ms, end_ms: end(start_ms, spoken_ms, wanted(sum(lines.map(width)))), lines };
}

/** All cues of the finals: [{start_ms, end_ms, lines}], in order and without overlap. */
export function cues(finals) {
  const found = [];
  let free_ms = 0;
  for (const final of finals) {
    const list = pieces(final);
    const cells = running(list);
    const length = (i, k) => cells[k] - cells[i] - list[i].blank.length;
    const edges = list.length > 0 ? cuts(list, length) : [0];
    for (let n = 1; n < edges.length; n++) {
      const [i, k] = [edges[n - 1], edges[n]];
      const shown = list.slice(i, k);
      const start = Math.max(shown[0].start_ms, free_ms);
      const spoken = Math.max(shown.at(-1).end_ms, start + 1);
      const texts = lines(shown).map((line) => line.map(({ blank, text }, j) => (j > 0 ? blank : "") + text).join(""));
      const end_ms = end(start, spoken, wanted(length(i, k)));
      const speaker = speakerOf(final.words);
      const cue = { start_ms: start, end_ms, lines: texts, spoken_ms: shown.at(-1).end_ms, speaker };
      const before = found.pop();
      const both = before && n === 1 ? joined(before, cue) : null;
      found.push(...(both ? [both] : before ? [ended(before, start), cue] : [cue]));
      free_ms = spoken;
    }
  }
  return found;
}
