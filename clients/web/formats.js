// The transcript as files, as `-o` writes them: lists of finals in, text out. What was corrected is
// written as it was corrected, but for jsonl, which has the finals as they were sent.

import { clean, cues } from "./cues.js";
import { nameOf, parts } from "./speakers.js";
import { corrected } from "./transcript.js";

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

const block = ({ start_ms, end_ms, lines }, point, escaped) =>
  `${time(start_ms, point)} --> ${time(end_ms, point)}\n${lines.map(escaped).join("\n")}\n\n`;

const line = ({ text }, { from, to, speaker }) =>
  `${speaker === undefined ? "" : `${clean(nameOf(speaker))}: `}${clean(text.slice(from, to)).trim()}\n`;

export const FORMATS = {
  txt: {
    mime: "text/plain",
    text: (finals) => finals.map(corrected).flatMap((final) => parts(final).map((part) => line(final, part))).join(""),
  },
  srt: {
    mime: "application/x-subrip",
    text: (finals) => cues(finals.map(corrected)).map((cue, i) => `${i + 1}\n${block(cue, ",", forSrt)}`).join(""),
  },
  vtt: {
    mime: "text/vtt",
    text: (finals) => `WEBVTT\n\n${cues(finals.map(corrected)).map((cue) => block(cue, ".", forVtt)).join("")}`,
  },
  jsonl: {
    mime: "application/jsonl",
    text: (finals) => finals.map((final) => `${JSON.stringify(final)}\n`).join(""),
  },
};
