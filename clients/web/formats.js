// The transcript as files, as `-o` writes them: lists of finals in, text out. What was corrected is
// written as it was corrected, but for jsonl, which has the finals as they were sent.

import { clean, cues } from "./cues.js";
import { nameOf, parts } from "./speakers.js";
import { corrected, placed } from "./transcript.js";

const time = (ms, point) => {
  const two = (n) => String(n).padStart(2, "0");
  const s = Math.floor(ms / 1000);
  const rest = String(ms % 1000).padStart(3, "0");
  return `${two(Math.floor(s / 3600))}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}${point}${rest}`;
};

// Escaping ">" also removes "-->", which a cue may not contain.
const forVtt = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

// SubRip has no escapes: a word joiner breaks what a player would take for a tag, and braces, whose
// inside players hide, become parentheses.
const forSrt = (text) =>
  text.replaceAll("{", "(").replaceAll("}", ")").replace(/<(?=[a-z/!?]|\s|$)/gi, "<\u2060").replace(/--+>/g, "->");

const block = ({ start_ms, end_ms, lines }, point, name, escaped) =>
  `${time(start_ms, point)} --> ${time(end_ms, point)}\n${name}${lines.map(escaped).join("\n")}\n\n`;

const line = ({ text }, part) =>
  `${part.speaker === undefined ? "" : `${clean(nameOf(part))}: `}${clean(text.slice(part.from, part.to)).trim()}\n`;

/** The parts of a final that one speaker says, as finals of their own; the speaker is a name. */
function bySpeaker(final) {
  const found = parts(final);
  const begins = placed(final.text, final.words).map(({ from }) => from);
  return found.map((part, i) => {
    const { from, to } = part;
    const speaker = part.speaker === undefined ? undefined : nameOf(part);
    const first = i > 0 ? begins.indexOf(from) : 0;
    const after = i + 1 < found.length ? begins.indexOf(to) : final.words.length;
    const words = final.words.slice(first, after).map((word) => ({ ...word, speaker }));
    const start_ms = first > 0 ? words[0].start_ms : final.start_ms;
    const end_ms = after < final.words.length ? words.at(-1).end_ms : Math.max(final.end_ms, start_ms);
    return { ...final, text: final.text.slice(from, to).trim(), words, start_ms, end_ms };
  });
}

const subtitles = (finals) => cues(finals.map(corrected).flatMap(bySpeaker));

/** The name before a cue of SubRip: only where another speaker had the one before. */
function answer({ speaker }, before) {
  return speaker === undefined || speaker === before?.speaker ? "" : `${forSrt(clean(speaker))}: `;
}

const voice = ({ speaker }) => (speaker === undefined ? "" : `<v ${forVtt(clean(speaker))}>`);

export const FORMATS = {
  txt: {
    mime: "text/plain",
    text: (finals) => finals.map(corrected).flatMap((final) => parts(final).map((part) => line(final, part))).join(""),
  },
  srt: {
    mime: "application/x-subrip",
    text: (finals) =>
      subtitles(finals)
        .map((cue, i, all) => `${i + 1}\n${block(cue, ",", answer(cue, all[i - 1]), forSrt)}`)
        .join(""),
  },
  vtt: {
    mime: "text/vtt",
    text: (finals) => `WEBVTT\n\n${subtitles(finals).map((cue) => block(cue, ".", voice(cue), forVtt)).join("")}`,
  },
  jsonl: {
    mime: "application/jsonl",
    text: (finals) => finals.map(({ run, ...final }) => `${JSON.stringify(final)}\n`).join(""),
  },
};
