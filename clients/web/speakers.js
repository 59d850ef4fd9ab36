// Who says what: captions in parts of one speaker each, and the names that speakers are given: by
// whoever may, for all readers of the session (`name` of docs/protocol.md), or else in this browser.

import { store, stored } from "./storage.js";
import { belongs, placed } from "./transcript.js";

const $ = (id) => document.getElementById(id);
export const COLOURS = 7; // in style.css and overlay.css
const INSIDE = /^[!-~\xa1-\u024f]{2}/; // two characters that belong together, in Latin script
const MOST_RUNS = 20; // of a session, whose names are kept
let session = "";
let sender = () => null; // what sends names of speakers in a run of the session, if this page may
let names = {}; // of the session's speakers, by number in each run: another one begins at 1 again

/** Whether a speaker cannot have begun at this place of a text. */
function isInside(text, at) {
  const [before, after] = [text.slice(0, at), text.slice(at)];
  return INSIDE.test(text.slice(at - 1)) || (/\S$/u.test(before) && belongs(before, after));
}

/**
 * Returns the parts of a caption that one speaker says: [{from, to, speaker, run}], in order. A word
 * that follows without a blank, such as ",000" after "1", belongs to the speaker before it.
 */
export function parts({ text, words, run }) {
  const found = [{ from: 0, to: text.length, speaker: undefined, run }];
  for (const { from, speaker } of placed(text, words ?? [])) {
    const last = found.at(-1);
    if (speaker === undefined || speaker === last.speaker) continue;
    if (last.speaker === undefined) last.speaker = speaker;
    else if (!isInside(text, from)) {
      last.to = from;
      found.push({ from, to: text.length, speaker, run });
    }
  }
  return found;
}

/** The name that somebody has given a speaker of a run, or undefined. */
export const givenName = (run, speaker) => names[run]?.[speaker];

/** The name of who says a part. */
export const nameOf = ({ speaker, run }) => givenName(run, speaker) ?? `Speaker ${speaker}`;

/** `send(run)`: an object whose `say(message)` tells all readers the name of a speaker, and which may have voices kept if it `keepsVoices`; or null. */
export const tellNamesBy = (send) => (sender = send);

/** Somebody has said what a speaker of a run is called, for all readers: a message `name`. */
export function named(run, { speaker, name }) {
  keep(run, speaker, name);
  show(run, speaker);
}

/** The names that readers have given speakers in a run of the session: [[number, name]]. */
export const namesIn = (run) => Object.entries(names[run] ?? {}).filter(([, name]) => name);

const kept = () => JSON.parse(stored(`names.${session}`, "{}"));

/** Show the speakers of a session under the names that this browser keeps of it. */
export function namesOf(newSession) {
  session = newSession;
  names = kept();
}

/** An element with the name of who says a part; a click on it asks for another. */
export function nameTag({ speaker, run }, tag = "button") {
  const made = document.createElement(tag);
  made.className = `who who${speaker % COLOURS}`;
  Object.assign(made.dataset, { speaker, run });
  made.dir = "auto"; // so that the text behind it has a direction of its own
  made.textContent = nameOf({ speaker, run });
  if (tag === "button") {
    made.title = "Give this speaker a name";
    made.tabIndex = -1; // there are thousands; the keyboard finds one of each in Settings
    made.onclick = () => ask(speaker, run);
  }
  return made;
}

/** Offer the names of all speakers who are shown, in Settings. */
export function offerNames() {
  const shown = [...document.querySelectorAll("#log .who")].map(({ dataset }) => `${dataset.run} ${dataset.speaker}`);
  const each = [...new Set(shown)].map((key) => key.split(" ")).map(([run, speaker]) => nameTag({ run, speaker: Number(speaker) }));
  for (const button of each) button.tabIndex = 0;
  $("speakers").replaceChildren(...each);
  $("speakers").hidden = each.length === 0;
}

/** Call a speaker by a name; it is kept in this browser, unless it is `brief`. */
function keep(run, speaker, name, isBrief = false) {
  names[run] = { ...names[run], [speaker]: name || undefined };
  const others = Object.entries(kept()).filter(([each]) => each !== run);
  const every = isBrief ? others : [...others, [run, names[run]]];
  store(`names.${session}`, JSON.stringify(Object.fromEntries(every.slice(-MOST_RUNS))));
}

function show(run, speaker) {
  for (const shown of document.querySelectorAll(`.who[data-run="${run}"][data-speaker="${speaker}"]`)) {
    shown.textContent = nameOf({ speaker, run });
  }
}

function ask(speaker, run) {
  const isForAll = sender(run) !== null;
  $("name").value = names[run]?.[speaker] ?? "";
  $("name").placeholder = `Speaker ${speaker}`;
  $("keep-name").checked = run in kept();
  $("keep-name").parentElement.hidden = isForAll;
  $("for-all").hidden = !isForAll;
  $("keeping").hidden = !sender(run)?.keepsVoices;
  $("keep-voice").checked = false; // each time somebody has to be asked
  $("naming").onclose = () => {
    if ($("naming").returnValue !== "save") return;
    const name = $("name").value.trim();
    const to = sender(run);
    if (to !== null) return to.say({ type: "name", speaker: Number(speaker), name, keep: $("keep-voice").checked }); // the answer shows it
    keep(run, speaker, name, !$("keep-name").checked);
    show(run, speaker);
  };
  $("naming").returnValue = "";
  $("naming").showModal();
}
