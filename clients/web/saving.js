// The transcript as files. Text and JSON are made here, of all that the page shows; subtitles and
// documents are written by the server, of what it has of the session.

import { ask } from "./connection.js";
import { isSound } from "./sounds.js";
import { nameOf, namesIn, parts } from "./speakers.js";
import { corrected } from "./transcript.js";

const BREAKS = /[\t\n\v\f\r\x85\u2028\u2029]/g;
const UNSAFE = /[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\p{Cs}/gu;

/** One line without control characters. */
const clean = (text) => text.replace(BREAKS, " ").replace(UNSAFE, "\ufffd");

const line = ({ text }, part) =>
  `${part.speaker === undefined ? "" : `${clean(nameOf(part))}: `}${clean(text.slice(part.from, part.to)).trim()}\n`;

function linesOf(item) {
  if (isSound(item)) return `[${clean(item.label)}]\n`;
  const final = corrected(item);
  return parts(final).map((part) => line(final, part)).join("");
}

const isHeard = (item) => item.type === "final" || isSound(item);

/** A line for what each speaker says, as it was corrected, and for each sound. */
export const asText = (items) => items.filter(isHeard).map(linesOf).join("");

/** Finals and sounds as they were sent, and the names of the speakers of the last run, a line of JSON each. */
export function asLines(items) {
  const heard = items.filter(isHeard);
  const named = namesIn(heard.at(-1)?.run).map(([speaker, name]) => ({ type: "name", speaker: Number(speaker), name }));
  return [...heard.map(({ run, ...item }) => item), ...named].map((line) => `${JSON.stringify(line)}\n`).join("");
}

const MADE_HERE = {
  txt: ({ items }) => new Blob([asText(items)], { type: "text/plain;charset=utf-8" }),
  jsonl: ({ items }) => new Blob([asLines(items)], { type: "application/jsonl;charset=utf-8" }),
};

const INSTEAD = "save it as txt or jsonl";

/** Fetch a format from the server, with the names that readers have given: {blob, note}. */
async function written(format, session, { epoch, items }) {
  const query = new URLSearchParams({ format });
  for (const [number, name] of namesIn(epoch)) query.append("name", `${number}:${name}`);
  let answer;
  try {
    answer = await ask(`v1/sessions/${encodeURIComponent(session)}/transcript?${query}`);
  } catch {
    return { note: `streamd cannot be reached: ${INSTEAD}` };
  }
  if (!answer.ok) return { note: `${(await answer.text()).trim()}: ${INSTEAD}` };
  const isPart = items.some(({ type }) => type === "divider");
  const note = isPart ? "This is only what was said since the session began again; txt and jsonl have all" : answer.headers.get("X-Streamd-Warning");
  return { blob: await answer.blob(), note };
}

/** Save a transcript in a format; returns what the reader has to know about that, or null. */
export async function save(format, session, transcript) {
  const { blob, note } = format in MADE_HERE ? { blob: MADE_HERE[format](transcript), note: null } : await written(format, session, transcript);
  if (blob !== undefined) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `${session}.${format}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }
  return note;
}

/** Put a text into the clipboard; returns whether the browser allows that. */
export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  // A page without https has no other way than to select the text and to say "copy".
  const before = document.activeElement;
  const area = document.body.appendChild(document.createElement("textarea"));
  area.className = "sr";
  area.value = text;
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  before?.focus();
  return isDone;
}
