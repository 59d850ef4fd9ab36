// Words from a document: the server reads it, and the session of this page's microphone expects its
// names and rare words, of which each can be removed.

import { ask } from "./connection.js";

const $ = (id) => document.getElementById(id);

const MOST_CHARACTERS = 3_500; // of the 4,000 that a session takes; corrections need the rest

let words = []; // of documents, as {text, count, name}
let corrected = []; // texts of corrections, which the server expects, too
let changed = false; // whether words were there, which may have been removed since

/** What the session is to expect: the field `hotwords` of docs/protocol.md, or nothing. */
export function expected() {
  const lines = [...new Set([...corrected, ...words.map(({ text }) => text)])];
  let nLeft = MOST_CHARACTERS;
  const fitting = lines.filter((line) => (nLeft -= line.length + 1) >= 0);
  return changed ? { hotwords: fitting.join("\n") } : {};
}

/** Keep what a correction has the server expect: the list that is sent next replaces that. */
export function noteCorrection({ text }) {
  corrected = [text, ...corrected.filter((each) => each !== text)].slice(0, 50);
}

function draw(update) {
  const items = words.map(({ text, count, name }) => {
    const button = document.createElement("button");
    button.textContent = text;
    button.title = `${name ? "A name" : "A rare word"}, there ${count === 1 ? "once" : `${count} times`}. Click to remove it.`;
    button.setAttribute("aria-label", `Remove ${text}`);
    button.onclick = () => {
      const next = button.nextElementSibling ?? button.previousElementSibling ?? $("document");
      words = words.filter((each) => each.text !== text);
      draw(update);
      update(expected());
      ($("words").querySelector(`[data-word="${CSS.escape(next.dataset.word ?? "")}"]`) ?? $("document")).focus();
    };
    button.dataset.word = text;
    return button;
  });
  $("words").replaceChildren(...items);
  $("words").hidden = items.length === 0;
}

/** Send a document, and show which of its words are expected from now on. */
async function read(file, { toast, update }) {
  toast(`Reading ${file.name} ...`, 60_000);
  const query = new URLSearchParams({ name: file.name.slice(-200) });
  const answer = await ask(`v1/context?${query}`, { method: "POST", body: file }).catch(() => null);
  if (!answer?.ok) {
    const said = await answer?.json().catch(() => null);
    const why = said?.error?.message ?? (answer ? `the server refuses it (${answer.status})` : "the server cannot be reached");
    return toast(`${file.name} is not used: ${why}`, 8000);
  }
  const { words: found } = await answer.json();
  const known = new Set(words.map(({ text }) => text));
  words = [...words, ...found.filter(({ text }) => !known.has(text))];
  changed = true;
  draw(update);
  update(expected());
  toast(found.length > 0 ? `${found.length} words of ${file.name} are expected (Settings lists them)` : `${file.name} has no names or rare words`, 6000);
}

/**
 * Offer it: by the field in the settings, and by dropping a file on the page.
 *
 * `toast(text, ms)` tells the user; `update(choices)` changes what the microphone's session expects.
 */
export function offerContext(callbacks) {
  $("document").onchange = () => {
    for (const file of $("document").files) read(file, callbacks);
    $("document").value = "";
  };
  addEventListener("dragover", (event) => {
    if ([...event.dataTransfer.types].includes("Files")) event.preventDefault(); // a drop is allowed
  });
  addEventListener("drop", (event) => {
    if (event.dataTransfer.files.length === 0) return;
    event.preventDefault(); // the browser would open it in place of the page
    for (const file of event.dataTransfer.files) read(file, callbacks);
  });
}
