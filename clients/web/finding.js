// Ways through a session of the library: words that are found in it, speakers, doubtful words.

import { $, toast } from "./asking.js";
import { current, finals, goTo, markFinds, nameOf, paragraphs, shown, watching, wordsOf } from "./reading.js";

let found = []; // [{turn, i}]: the first words of what was found
let wanted = "";

const ACCENTED = /[\0-\u052f\u1e00-\u1fff]/; // Latin, Greek and Cyrillic; Hangul would lose what tells syllables apart

/** A text without accents and capitals, of the same length. */
const folded = (text) => [...text].map((char) => (ACCENTED.test(char) ? char.normalize("NFD")[0].toLowerCase()[0] : char)).join("");

/** Mark what is looked for in the session. */
function look() {
  wanted = $("inside-query").value.trim();
  const needle = folded(wanted);
  const finds = new Map();
  if (needle !== "") {
    for (const final of finals()) {
      const { text } = shown(final);
      const plain = folded(text);
      const places = [];
      for (let at = plain.indexOf(needle); at >= 0; at = plain.indexOf(needle, at + needle.length)) {
        places.push({ of: text, from: at, to: at + needle.length });
      }
      if (places.length > 0) finds.set(final, places);
    }
  }
  found = [];
  for (const turn of finds.size > 0 ? paragraphs() : []) {
    for (const [i, word] of wordsOf(turn).entries()) {
      if (finds.get(word.final)?.some(({ from }) => word.from <= from && from < word.to)) found.push({ turn, i });
    }
  }
  markFinds(finds);
  count(-1);
}

function count(n) {
  $("count").textContent = wanted === "" ? "" : n < 0 ? `${found.length} found` : `${n + 1} of ${found.length}`;
}

const order = ({ turn, i }) => [paragraphs().indexOf(turn), i];
const isBehind = ([turn, i], [otherTurn, other]) => turn > otherTurn || (turn === otherTurn && i > other);

/** Go to the next place where it was found, or the one before. */
export function next(by) {
  if (found.length === 0) return;
  const at = current() ? order(current()) : [-1, -1];
  const places = found.map(order);
  const behind = places.findIndex((place) => isBehind(place, at));
  const before = places.findLastIndex((place) => isBehind(at, place));
  const n = by > 0 ? (behind < 0 ? 0 : behind) : before < 0 ? found.length - 1 : before;
  $("sound").pause();
  goTo(found[n]);
  count(n);
}

/** Go to the next word that may have been misheard, or the one before, and play no further. */
export function doubtful(by) {
  const turns = paragraphs();
  const [n, i] = current() ? order(current()) : [0, -1];
  $("sound").pause();
  for (let at = n; at >= 0 && at < turns.length; at += by) {
    const words = wordsOf(turns[at]);
    const isWanted = (word, k) => word.isLow && (at !== n || (by > 0 ? k > i : k < i));
    const k = by > 0 ? words.findIndex(isWanted) : words.findLastIndex(isWanted);
    if (k >= 0) return goTo({ turn: turns[at], i: k });
  }
  toast(by > 0 ? "No doubtful word follows" : "No doubtful word comes before");
}

/** Go to where the chosen speaker, or any other one if none is chosen, speaks next or spoke before. */
export function speaker(by) {
  const turns = paragraphs();
  const chosen = $("by").value;
  const n = current() ? turns.indexOf(current().turn) : by > 0 ? -1 : turns.length;
  const isOther = (turn) => (chosen === "" ? turn.speaker !== turns[n]?.speaker : String(turn.speaker) === chosen);
  for (let at = n + by; at >= 0 && at < turns.length; at += by) {
    if (isOther(turns[at]) && wordsOf(turns[at]).length > 0) return goTo({ turn: turns[at], i: 0 });
  }
  toast(chosen === "" ? "Nobody else speaks there" : `${nameOf(chosen)} does not speak there`);
}

/** Offer the speakers that there are. */
function offer() {
  const known = [...new Set(paragraphs().map((turn) => turn.speaker))].filter((each) => each !== undefined).sort((a, b) => a - b);
  const before = $("by").value;
  const texts = [["", "any speaker"], ...known.map((each) => [String(each), nameOf(each)])];
  if (JSON.stringify(texts) !== JSON.stringify([...$("by").options].map(({ value, text }) => [value, text]))) {
    $("by").replaceChildren(...texts.map(([value, text]) => new Option(text, value)));
    $("by").value = texts.some(([value]) => value === before) ? before : "";
  }
  $("by").hidden = $("speaker-before").hidden = $("speaker-next").hidden = known.length === 0;
  if (wanted !== "") look();
}

export function forget() {
  $("inside-query").value = wanted = "";
  found = [];
  count(-1);
}

let waiting;
$("inside-query").oninput = () => {
  clearTimeout(waiting);
  waiting = setTimeout(look, 150); // hours of text take some of it at each letter
};
$("inside").onsubmit = (event) => {
  event.preventDefault();
  clearTimeout(waiting);
  if ($("inside-query").value.trim() !== wanted) look();
  next(1);
};
$("inside-query").onkeydown = (event) => {
  if (event.key === "Escape") $("view").focus();
  if (event.key !== "Enter" || !event.shiftKey) return;
  event.preventDefault();
  next(-1);
};
$("found-before").onclick = () => next(-1);
$("found-next").onclick = () => next(1);
$("doubtful-before").onclick = () => doubtful(-1);
$("doubtful-next").onclick = () => doubtful(1);
$("speaker-before").onclick = () => speaker(-1);
$("speaker-next").onclick = () => speaker(1);
$("by").onchange = () => $("by").value !== "" && speaker(1);
watching.add(offer);
