// The captions in the reader's language: which one, and where the translations stand.
//
// The server sends them sentence by sentence (`translation` of docs/protocol.md). Those of older
// paragraphs stand in these, those of the newest paragraph behind what is being said.

import { store, stored } from "./storage.js";
import { directionOf } from "./transcript.js";
import { paragraphOf } from "./view.js";

const $ = (id) => document.getElementById(id);
const known = new Map(); // complete sentences, by run and number of the last final: {key, last, ...}
const open = new Map(); // those that may change, by channel
let waiting = new Set(); // keys of sentences that are not in a paragraph for good
let epoch = ""; // the run of the session
let into = ""; // the language of those that are known
let offered = ""; // languages of the server
let send = () => {};
let failed = false;

const named = (code) => new Intl.DisplayNames([code], { type: "language", fallback: "code" }).of(code);
const upper = (text, code) => text.charAt(0).toLocaleUpperCase(code) + text.slice(1);

/** What the reader has chosen: {into, mode}, "" and "" for the original alone. */
function chosen() {
  const [into = "", mode = ""] = $("into").value.split(" ");
  return { into, mode: into && !failed ? mode : "" };
}

/** Forget all translations: another session is shown. */
export function clear() {
  known.clear();
  open.clear();
  waiting.clear();
  $("translating").replaceChildren();
}

/** Take a message of the server; `reply` sends one. */
export function apply(message, reply) {
  if (message.type === "hello") {
    epoch = message.epoch;
    send = reply;
    failed = false;
    open.clear();
    offer(message.translates ?? []);
    if (chosen().into === into) request();
    else choose();
  }
  if (message.type === "error" && message.code === "translation") {
    failed = true;
    arrange();
  }
  if (message.type !== "translation" || message.into !== chosen().into) return;
  const slot = message.channel ?? 0;
  if (!message.complete) {
    open.set(slot, message);
    return;
  }
  if (open.get(slot)?.seg === message.seg) open.delete(slot);
  const key = `${epoch} ${message.last}`;
  if (known.has(key)) return; // such a one never changes
  known.set(key, { ...message, key, run: epoch });
  waiting.add(key);
}

/** Offer the languages of a server, and choose what this browser's user chose before. */
function offer(languages) {
  if (languages.join() === offered) return; // a list that is open stays open
  offered = languages.join();
  const options = languages.flatMap((code) => {
    const name = upper(named(code), code);
    const each = [new Option(name, `${code} only`), new Option(`${name} + original`, `${code} both`)];
    for (const option of each) option.lang = code;
    return each;
  });
  const before = $("into").options.length > 1 ? $("into").value : stored("into");
  $("into").replaceChildren(new Option("Original", ""), ...options);
  $("into").value = options.some(({ value }) => value === before) ? before : "";
  $("reading").hidden = languages.length === 0;
}

/** What is being translated comes to no end: the connection is lost. */
export function interrupt() {
  open.clear();
  for (const old of $("translating").querySelectorAll(".open")) remove(old);
}

/** Ask for what is chosen, in place of what was. */
function choose() {
  failed = false;
  into = chosen().into;
  clear();
  for (const old of document.querySelectorAll("#log .translation")) old.remove();
  request();
}

/** Ask for those that are not known yet: a server that one returns to begins anew. */
function request() {
  if (into || send.asked) send({ type: "translate", into, after: nKnown() });
  send.asked = into !== "";
  arrange();
}

/** The number of the final up to which all sentences of this run are known. */
function nKnown() {
  const own = [...known.values()].filter(({ run }) => run === epoch);
  return own.sort((a, b) => a.first - b.first).reduce((n, { first, last }) => (first <= n + 1 ? Math.max(n, last) : n), 0);
}

function arrange() {
  const { into, mode } = chosen();
  $("text").dataset.reading = mode;
  $("translating").dir = directionOf(into);
  $("machine").hidden = !into;
  $("machine").textContent = failed ? "no translation" : "translated by a machine";
  // Who reads the translation alone hears it, too; otherwise the original is read aloud.
  $("translating").ariaLive = mode === "only" ? "polite" : "off";
}

$("into").onchange = () => {
  store("into", $("into").value);
  if (chosen().into === into && !failed) arrange();
  else choose();
};

function sentence({ text, into, last, key }) {
  const made = document.createElement("span");
  made.lang = into;
  made.textContent = text;
  if (key !== undefined) Object.assign(made.dataset, { last, key });
  return made;
}

/** Remove a sentence with the blank behind it. */
function remove(made) {
  made.nextSibling?.remove();
  made.remove();
}

/** Put a sentence into its place among others, which are in the order of their finals. */
function insert(block, made) {
  const after = [...block.children].find((each) => Number(each.dataset.last ?? Infinity) > Number(made.dataset.last));
  block.insertBefore(made, after ?? null);
  made.after(" ");
}

function blockOf(paragraph, lang) {
  const there = paragraph.querySelector(":scope > .translation");
  if (there !== null) return there;
  const block = document.createElement("span");
  block.className = "translation";
  block.lang = lang;
  block.dir = directionOf(lang);
  paragraph.append(block);
  return block;
}

/** Mark paragraphs that hold nothing but the beginning of a sentence, whose translation stands in a later one. */
function cover(paragraph, first) {
  for (let each = paragraph.previousElementSibling; each?.matches(".final"); each = each.previousElementSibling) {
    const begins = each.querySelector("[data-item]");
    if (begins === null || Number(begins.dataset.item) < first) return;
    each.classList.add("covered");
  }
}

/** Show the translations of these items; `isNew`: paragraphs were made anew. */
export function show(items, { isNew = false } = {}) {
  const line = $("translating");
  if (chosen().into === "") return;
  // Paragraphs before the revised ones stand as they are, with their translations.
  const standing = isNew ? document.querySelectorAll("#log .translation > [data-key]") : [];
  if (isNew) waiting = new Set(known.keys());
  for (const { dataset } of standing) waiting.delete(dataset.key);
  // What is being said may go on with the newest paragraph, or begin another one.
  const newest = $("partial").classList.contains("alone") ? null : $("log").lastElementChild;
  const early = newest?.querySelector(":scope > .translation");
  for (const { dataset } of early?.children ?? []) waiting.add(dataset.key);
  early?.remove();
  if (waiting.size > 0) {
    const numbers = new Map(items.map(({ run, seq }, n) => [`${run} ${seq}`, n]));
    const shown = new Map([...line.children].map((each) => [each.dataset.key, each]));
    for (const key of [...waiting]) {
      const n = numbers.get(key);
      const paragraph = n === undefined ? null : paragraphOf(n);
      if (paragraph === null) continue; // the final comes first, unless this page has cleared it
      const message = known.get(key);
      cover(paragraph, numbers.get(`${message.run} ${message.first}`));
      const isLast = paragraph === newest;
      if (isLast && shown.has(key)) continue;
      if (shown.has(key)) remove(shown.get(key));
      const block = isLast ? line : blockOf(paragraph, chosen().into);
      insert(block, sentence(message));
      if (!isLast) waiting.delete(key);
    }
  }
  for (const old of line.querySelectorAll(".open")) remove(old);
  for (const message of open.values()) {
    const made = sentence(message);
    made.className = "open";
    made.ariaHidden = "true"; // it is read aloud when it does not change any more
    line.append(made, " ");
  }
}
