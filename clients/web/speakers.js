// Who says what: captions in parts of one speaker each, and the names that readers give speakers.

import { store, stored } from "./storage.js";
import { placed } from "./transcript.js";

const $ = (id) => document.getElementById(id);
const COLOURS = 7; // in style.css
const INSIDE = /^[!-~\xa1-\u024f]{2}/; // two characters that belong together, in Latin script
let session = "";
let names = {}; // of the session's speakers, by number

/**
 * Returns the parts of a caption that one speaker says: [{from, to, speaker}], in order. A word that
 * follows without a blank, such as ",000" after "1", belongs to the speaker before it.
 */
export function parts({ text, words }) {
  const found = [{ from: 0, to: text.length, speaker: undefined }];
  for (const { from, speaker } of placed(text, words ?? [])) {
    const last = found.at(-1);
    if (speaker === undefined || speaker === last.speaker) continue;
    if (last.speaker === undefined) last.speaker = speaker;
    else if (!INSIDE.test(text.slice(from - 1))) {
      last.to = from;
      found.push({ from, to: text.length, speaker });
    }
  }
  return found;
}

export const nameOf = (speaker) => names[speaker] ?? `Speaker ${speaker}`;

/** Show the speakers of a session under the names that this browser keeps of it. */
export function namesOf(newSession) {
  session = newSession;
  names = JSON.parse(stored(`names.${session}`, "{}"));
}

/** An element with a speaker's name; a click on it asks for another. */
export function nameTag(speaker, tag = "button") {
  const made = document.createElement(tag);
  made.className = `who who${speaker % COLOURS}`;
  made.dataset.speaker = speaker;
  made.dir = "auto"; // so that the text behind it has a direction of its own
  made.textContent = nameOf(speaker);
  if (tag === "button") {
    made.title = "Give this speaker a name";
    made.onclick = () => ask(speaker);
  }
  return made;
}

function ask(speaker) {
  $("name").value = names[speaker] ?? "";
  $("name").placeholder = `Speaker ${speaker}`;
  $("keep-name").checked = localStorage.getItem(`streamd.names.${session}`) !== null;
  $("naming").onclose = () => {
    if ($("naming").returnValue !== "save") return;
    const name = $("name").value.trim();
    if (name) names[speaker] = name;
    else delete names[speaker];
    if ($("keep-name").checked) store(`names.${session}`, JSON.stringify(names));
    else localStorage.removeItem(`streamd.names.${session}`);
    for (const shown of document.querySelectorAll(`.who[data-speaker="${speaker}"]`)) shown.textContent = nameOf(speaker);
  };
  $("naming").returnValue = "";
  $("naming").showModal();
}
