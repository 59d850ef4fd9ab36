// Captions over a picture, for OBS's browser source: no controls, reconnects by itself.
//
// /overlay?session=live&lines=2&size=48&width=24em&font=Roboto&outline=3&align=top-center
//         &color=white&bg=transparent&box=%23000a&fade=6&partials=1&calm=0&speakers=dash&translate=pt

import { Listening } from "./connection.js";
import { agreed, RollUp } from "./rollup.js";
import { COLOURS, givenName, named, namesOf, parts } from "./speakers.js";
import { Transcript } from "./transcript.js";

const options = new URLSearchParams(location.search);
const lines = document.getElementById("lines");
const style = document.documentElement.style;

const NAMES = "session lines size width font outline align color bg box fade partials calm speakers translate".split(" ");
const PLACES = "top middle bottom left center right".split(" ");
const wrong = [...options.keys()].filter((name) => !NAMES.includes(name)).map((name) => `${name} is no option`);

/** Return a numeric option within limits, or the default if it is not a number. */
function number(name, otherwise, least, most) {
  const given = options.get(name);
  if (given === null) return otherwise;
  const value = Number(given.trim() || NaN);
  if (!(value >= least && value <= most)) wrong.push(`${name} must be from ${least} to ${most}, got ${given}`);
  return Number.isFinite(value) ? Math.min(most, Math.max(least, value)) : otherwise;
}

/** Apply an option to a variable of the style sheet, if the browser accepts it for `property`. */
function css(name, property, value = options.get(name)) {
  if (value === null) return;
  if (CSS.supports(property, value)) style.setProperty(`--${name}`, value);
  else wrong.push(`${name} is not CSS: ${value}`);
}

const size = number("size", 48, 8, 400);
style.setProperty("--size", `${size}px`);
css("color", "color");
css("bg", "color");
css("box", "color");
css("font", "font-family");
const width = options.get("width");
css("width", "width", /^\d+$/.test(width) ? `${width}px` : width);
const outline = number("outline", 0, 0, 40);
style.setProperty("--outline", `${outline}px`);
if (outline > 0) document.body.dataset.outline = "";
const align = (options.get("align") ?? "").split("-").filter(Boolean);
for (const place of align) if (!PLACES.includes(place)) wrong.push(`align has no ${place}`);
document.body.dataset.align = align.join(" ");
const fadeMs = 1000 * number("fade", 6, 0, 3600);
const partials = options.get("partials") !== "0";
const calm = options.get("calm") === "1";
const MARKS = { dash: "\n– ", color: "\n", off: "" };
const marks = options.get("speakers") ?? "dash";
if (!(marks in MARKS)) wrong.push(`speakers must be dash, color or off, got ${marks}`);

let into = options.get("translate") ?? "";
let translated = null; // the newest sentence in that language, while it may change

let fading = null;
let speaker; // of the final that was shown last
let before = { seg: undefined, text: "" }; // the last guess
const transcript = new Transcript({ history: false });
const rollUp = new RollUp(lines, {
  nLines: Math.min(Math.round(number("lines", 2, 1, 20)), Math.max(1, Math.floor((0.96 * innerHeight) / (1.3 * size)))),
  longest: Math.max(1, Math.floor(lines.clientWidth / size)),
});

/** What stands before the words of another speaker, or of the first one: the name, or a dash. */
function markOf(speaker, last) {
  const name = marks === "off" ? undefined : givenName(transcript.epoch, speaker);
  const begin = last === undefined ? "" : "\n";
  return name ? `${begin}${name}: ` : begin && (MARKS[marks] ?? "");
}

/** A caption whose text says where another speaker begins: with a new line, and a name, dash or colour. */
function withSpeakers(caption, stable) {
  let [text, last, settled] = ["", speaker, stable];
  const begins = []; // of each part: [in the text, its class]
  for (const part of parts(caption)) {
    const isOther = part.speaker !== undefined && part.speaker !== last;
    const mark = isOther ? markOf(part.speaker, last) : "";
    if (mark && part.from < stable) settled += mark.length - (text === "" ? 0 : 1);
    text = (mark ? text.trimEnd() : text) + mark;
    last = part.speaker ?? last;
    begins.push([text.length, marks === "color" && last !== undefined ? `who${last % COLOURS}` : ""]);
    text += caption.text.slice(part.from, part.to);
  }
  return { text, stable: settled, last, classAt: (at) => begins.findLast(([begin]) => begin <= at)?.[1] ?? "" };
}

function show(item) {
  if (wrong.length > 0) rollUp.clear(); // it was told
  wrong.length = 0;
  // What has faded does not come back.
  if (lines.classList.contains("silent")) rollUp.clear();
  if (item?.type === "final") {
    const marked = withSpeakers(item, item.text.length);
    rollUp.settle(marked.text, marked.classAt);
    speaker = marked.last;
  }
  if (item?.type === "sound") rollUp.settle(`\n[${item.label}]`);
  const partial = !partials ? null : into ? translated : transcript.partial;
  const { text, stable, classAt } = withSpeakers(partial ?? { text: "" }, partial?.stable);
  const isSame = partial?.seg === before.seg;
  rollUp.show(calm ? agreed(text, isSame ? before.text : "", stable ?? 0) : text, stable, classAt);
  before = { seg: partial?.seg, text };
  lines.classList.toggle("silent", lines.textContent === "");
  clearTimeout(fading);
  if (fadeMs > 0) fading = setTimeout(() => lines.classList.add("silent"), fadeMs);
}

lines.classList.add("silent");
if (wrong.length > 0) {
  console.warn(`overlay: ${wrong.join("; ")}`);
  rollUp.settle(wrong.join("; "));
  lines.classList.remove("silent");
}

/** Show a sentence of the language that was asked for, in place of what was said. */
function showTranslated(message) {
  const caption = { seg: message.seg, text: message.text, stable: message.text.length, words: [] };
  lines.lang = message.into;
  translated = message.complete ? null : caption;
  show(message.complete ? { type: "final", ...caption } : undefined);
}

/** Say on the overlay what is wrong with the language. */
function refuse({ code, message }) {
  if (code !== "bad_option" && code !== "translation") return;
  rollUp.settle(message);
  lines.classList.remove("silent");
  if (code === "translation") into = lines.lang = ""; // as on the page, what is said is shown instead
}

addEventListener("resize", () => rollUp.clear());
const session = options.get("session") ?? "live";
namesOf(session);
const listening = new Listening(session, transcript, {
  changed: (kind, message) => {
    const { newest } = transcript;
    transcript.newest = null;
    if (message.type === "hello") translated = null; // its end may have been missed
    if (into && message.type === "hello") listening.say({ type: "translate", into });
    if (into && message.type === "error") refuse(message);
    if (message.type === "name") named(transcript.epoch, message);
    if (message.type === "translation") showTranslated(message);
    else if (kind === "partial" && !into) show();
    else if (kind !== "partial" && newest !== null && (!into || newest.type !== "final")) show(newest);
    if (transcript.items.length > 50) transcript.forget(10);
  },
  status: () => {},
});
