// The transcript on the page, as paragraphs. Text from the network is only ever set as text, never
// as HTML.

import { isSound, soundNote } from "./sounds.js";
import { nameTag, parts } from "./speakers.js";
import { clock, corrected, isUnspaced, placed, script } from "./transcript.js";

const $ = (id) => document.getElementById(id);
const PAUSE_MS = 2000; // begins a paragraph
const LONG = 330; // characters, about 60 words, after which a shorter pause behind a sentence does, too
const BREATH_MS = 400;
const LONGEST = 2 * LONG; // after which the end of a sentence does
const HANGUL = /\p{sc=Hang}/u;
const SENTENCE_END = /\p{Sentence_Terminal}["'”’»)」』]*$/u;

const GAPS = {
  overrun: "the microphone's driver overflowed",
  engine: "the engine was too slow",
  device: "the device was disconnected",
  restart: "the server was restarted",
  resume: "the client had lost it",
};

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

/** The class of a word by its probability; "w0" also where the model tells none. */
const rank = (prob = 1) => (prob >= 0.8 ? "w0" : prob >= 0.6 ? "w1" : prob >= 0.4 ? "w2" : "w3");

/** Yield the text from `from` to `to` of item `n` as nodes, with the words marked by confidence. */
function* marked(event, from, to, n) {
  let at = from;
  for (const word of placed(event.text, event.words)) {
    if (word.from < from || word.to > to) continue;
    yield document.createTextNode(event.text.slice(at, word.from));
    if (word.was !== undefined) yield element("del", "", word.was);
    const shown = element(word.was === undefined ? "span" : "ins", rank(word.prob), event.text.slice(word.from, word.to));
    if (n !== undefined) Object.assign(shown.dataset, { item: n, first: word.first, last: word.last });
    yield shown;
    at = word.to;
  }
  yield document.createTextNode(event.text.slice(at, to));
}

function note(item) {
  if (isSound(item)) return soundNote(item);
  if (item.type === "gap") {
    const seconds = (item.duration_ms / 1000).toFixed(1);
    return element("p", "note", `${seconds} s of audio lost (${GAPS[item.why] ?? item.why})`);
  }
  if (item.type === "missed") return element("p", "note", "The server no longer has older text.");
  const time = new Date(item.at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return element("p", "divider", `continued at ${time}`);
}

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const scroll = $("scroll");
const log = $("log");
let into = log; // where paragraphs are made
let begun = []; // the items that began a paragraph: [{n, made}], with that one
let following = true;
let last = null; // the newest final, if a paragraph with it is still open
let speaker; // of that paragraph

/** Whether an event continues the paragraph of the newest final. */
function continues(event) {
  if (last === null || event.start_ms - last.end_ms >= PAUSE_MS) return false;
  if (![undefined, speaker].includes(parts(event)[0].speaker)) return false;
  const scripts = new Set([script(last.text), script(event.text), -1]);
  if (scripts.size > 2) return false; // each script has a direction of its own
  const length = into.lastElementChild.textContent.length;
  const isBreath = event.start_ms - last.end_ms >= BREATH_MS || length >= LONGEST;
  return length < LONG || !isBreath || !SENTENCE_END.test(last.text);
}

const blank = (event) => (isUnspaced(last.text.at(-1)) || isUnspaced(event.text[0] ?? "") ? "" : " ");

function paragraph(final, part) {
  const made = element("p", "final");
  made.dir = "auto";
  const time = element("time", "", clock(final.start_ms));
  time.ariaHidden = "true"; // a screen reader should not read the time before each sentence
  made.append(time);
  if (part.speaker !== undefined) made.append(nameTag(part), " ");
  speaker = part.speaker;
  return made;
}

/** Append the item of this number: a final, or what happened between finals; `isNews`: just now. */
function append(plain, n, isNews = false) {
  const item = plain.type === "final" ? corrected(plain) : plain;
  $("hint").hidden = true;
  const nBefore = into.childElementCount;
  if (item.type === "final") {
    const goesOn = continues(item);
    for (const [i, part] of parts(item).entries()) {
      if (i === 0 && goesOn) into.lastElementChild.append(blank(item));
      else into.append(paragraph(item, part));
      speaker = part.speaker ?? speaker;
      const text = element("span", "text");
      text.lang = item.language;
      text.append(...marked(item, part.from, part.to, n));
      into.lastElementChild.append(text);
      if (isNews && !calm.matches) text.animate({ opacity: [0.6, 1] }, 250);
    }
    last = item;
    if (!goesOn) begun.push({ n, made: into.children[nBefore] });
  } else {
    into.append(note(item));
    last = null;
    begun.push({ n, made: into.lastElementChild });
  }
}

/** Append the items from number `from` on; `isNews`: they are no replay. */
export function extend(items, from, { isNews = false } = {}) {
  for (let n = from; n < items.length; n++) append(items[n], n, isNews);
}

/** Show other speakers or corrections of the items from number `from` on; paragraphs that stay as they are are left alone. */
export function revise(items, from) {
  // The item before may have to share a paragraph with it now.
  const at = begun.findLastIndex(({ n }) => n < from);
  const { n, made } = begun[Math.max(0, at)] ?? {};
  if (made === undefined) return;
  const old = [];
  for (let each = made; each !== null; each = each.nextElementSibling) old.push(each);
  begun = begun.slice(0, Math.max(0, at));
  last = null;
  into = element("div", "");
  extend(items, n);
  const fresh = [...into.children];
  into = log;
  let same = 0;
  while (same < Math.min(old.length, fresh.length) && old[same].isEqualNode(fresh[same])) same++;
  // A screen reader has read them already.
  log.ariaLive = "off";
  for (const paragraph of old.slice(same)) paragraph.remove();
  log.append(...fresh.slice(same));
  const standing = new Map(fresh.slice(0, same).map((each, i) => [each, old[i]]));
  for (const each of begun) each.made = standing.get(each.made) ?? each.made;
}

/** The paragraph in which item `n` ends, or null. */
export function paragraphOf(n) {
  const at = begun.findLastIndex((each) => each.n <= n);
  if (at < 0) return null;
  return at + 1 < begun.length ? begun[at + 1].made.previousElementSibling : log.lastElementChild;
}

/** Show what may still change: that which continues the last final first. */
export function showPartials(partials) {
  const line = $("partial");
  line.replaceChildren();
  const first = partials.find(continues);
  // It stands in the line of the last final, and in its direction, or in a line of its own.
  log.classList.toggle("open", first !== undefined);
  $("text").dir = first === undefined ? "" : log.lastElementChild.matches(":dir(rtl)") ? "rtl" : "ltr";
  line.classList.toggle("alone", first === undefined && partials.length > 0);
  if (partials.length === 0) return;
  line.dataset.time = clock(partials[0].start_ms); // takes the place that the final's will take
  line.lang = partials.some(({ text }) => HANGUL.test(text)) ? "ko" : "";
  $("hint").hidden = true;
  for (const partial of first === undefined ? partials : [first, ...partials.filter((each) => each !== first)]) {
    if (partial === first) line.append(blank(partial));
    for (const [i, part] of parts(partial).entries()) {
      if (line.hasChildNodes() && (i > 0 || partial !== first)) line.append(element("br", ""));
      if (part.speaker !== undefined && (i > 0 || partial !== first)) line.append(nameTag(part, "span"), " ");
      const end = Math.max(part.from, Math.min(part.to, partial.stable));
      const stable = element("span", "stable");
      stable.append(...marked(partial, part.from, end));
      line.append(stable, ...marked(partial, end, part.to));
    }
  }
}

export function clear(hint = "Waiting for speech.") {
  log.replaceChildren();
  begun = [];
  last = null;
  speaker = undefined;
  showPartials([]);
  $("hint").textContent = hint;
  $("hint").hidden = false;
}

/** Scroll to the newest line, unless the user reads older ones. */
export function scrollToEnd() {
  if (following) scroll.scrollTop = scroll.scrollHeight;
}

function follow(on) {
  following = on;
  $("follow").hidden = on;
  scroll.classList.toggle("reading", !on);
}

scroll.addEventListener("scroll", () => follow(scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 40));
$("follow").onclick = () => {
  follow(true);
  scrollToEnd();
};
// The height of a paragraph is a guess until it is near what is shown (content-visibility).
const sizes = new ResizeObserver(scrollToEnd);
for (const each of [scroll, $("page")]) sizes.observe(each);
