// One session of the library: its text in paragraphs, and its sound. A click on a word plays it, and
// the word that sounds is marked. What is said meanwhile follows, if the session goes on.
//
// Only paragraphs near what one sees have an element for each word: hours of text stay light.

import { $, day, element, fetched, hour, toast } from "./asking.js";
import { Listening } from "./connection.js";
import { COLOURS, parts } from "./speakers.js";
import { clock, corrected, placed, Transcript } from "./transcript.js";

const SKIP_S = 5;
const REPLAY_MS = 120_000; // "the last two minutes"
const PAUSE_MS = 2000; // begins a paragraph
const DOUBTFUL = 0.5; // probability below which a word is marked
const ASKS_MS = 2000; // between questions about a session to which nobody can listen; more if nothing comes
const MOST_ASKS_MS = 30_000;
const LATE_MS = 1500; // at the end of a recording that goes on, which may not be written yet
const NEAR = "100% 0px"; // of the view: paragraphs that have words

let transcript = null;
let listening = null;
let asking = null; // the timer
let askMs = ASKS_MS;
let waiting = null; // the timer of a sound that is not written yet
let turns = []; // paragraphs: [{element, parts, start_ms}], in order
let marked = null; // {turn, i}: the word that sounds
let playing = null; // the sound that is loaded
let loadedMs = 0; // how much of it there was
let title = null;

export let session = null; // the one that is open, as the server gave it
export const finals = () => transcript?.finals ?? [];
export const nameOf = (speaker) => session.names[speaker] ?? `Speaker ${speaker}`;
/** Called when the text has changed. */
export const watching = new Set();

// -- what is shown ----------------------------------------------------------------------------------

const worked = new WeakMap(); // of finals, which never change themselves: {text, parts}

/** A final as it stands, in parts of one speaker each, with the places of their words. */
export function shown(final) {
  if (worked.has(final)) return worked.get(final);
  const now = corrected(final);
  const places = placed(now.text, now.words);
  const all = parts(now).map((part) => ({
    ...part,
    final,
    text: now.text,
    words: places
      .map((place, i) => ({ ...now.words[i], from: place.from, to: place.to, isLow: now.words[i].was === undefined && now.words[i].prob < DOUBTFUL }))
      .filter(({ from, to }) => from >= part.from && to <= part.to),
  }));
  const found = { text: now.text, parts: all.filter(({ words, text }) => words.length > 0 || text !== "") };
  worked.set(final, found);
  return found;
}

/** The paragraphs of the finals: [{parts, speaker, start_ms}]. */
function* grouped() {
  let turn = null;
  let endMs = 0;
  for (const final of finals()) {
    for (const [n, part] of shown(final).parts.entries()) {
      const isNew = turn === null || final.start_ms - endMs >= PAUSE_MS || part.speaker !== turn.speaker || n > 0;
      if (isNew && turn !== null) yield turn;
      if (isNew) turn = { parts: [], speaker: part.speaker, start_ms: part.words[0]?.start_ms ?? final.start_ms };
      turn.parts.push(part);
      endMs = final.end_ms;
    }
  }
  if (turn !== null) yield turn;
}

const isSame = (one, other) => one.speaker === other.speaker && one.parts.length === other.parts.length && one.parts.every((part, n) => part === other.parts[n]);

const nearby = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) isIntersecting ? fill(target.turn) : empty(target.turn);
  },
  { root: $("view"), rootMargin: NEAR },
);

/** Show the text as it is now; paragraphs that stay as they are are left alone. */
export function draw() {
  const at = marked && wordOf(marked).start_ms;
  const isAtEnd = $("view").scrollTop + $("view").clientHeight > $("view").scrollHeight - 40;
  const now = [...grouped()];
  let same = 0;
  while (same < Math.min(turns.length, now.length) && isSame(turns[same], now[same])) same++;
  let last = 0;
  while (last < Math.min(turns.length, now.length) - same && isSame(turns.at(-1 - last), now.at(-1 - last))) last++;
  const behind = last ? turns[turns.length - last].element : null;
  for (const { element: gone } of turns.slice(same, turns.length - last)) {
    nearby.unobserve(gone);
    gone.remove();
  }
  const made = now.slice(same, now.length - last);
  for (const turn of made) {
    turn.element = paragraph(turn);
    $("shown").insertBefore(turn.element, behind);
    nearby.observe(turn.element);
  }
  turns = [...turns.slice(0, same), ...made, ...(last ? turns.slice(turns.length - last) : [])];
  document.querySelector(".who")?.setAttribute("tabindex", "0");
  marked = null;
  if (at !== null) mark(at);
  if (isAtEnd && listening !== null && $("sound").paused) $("view").scrollTop = $("view").scrollHeight;
  for (const tell of watching) tell();
}

function paragraph(turn) {
  const made = element("p", "turn");
  made.dir = "auto";
  made.lang = turn.parts[0].final.language;
  made.turn = turn;
  made.append(element("time", "", clock(turn.start_ms)));
  if (turn.speaker !== undefined) made.append(tag(turn.speaker), " ");
  const said = element("span", "said");
  said.append(turn.parts.map(({ text, from, to }) => text.slice(from, to).trim()).join(" "));
  made.append(said);
  return made;
}

function tag(speaker) {
  const made = element("button", `who who${speaker % COLOURS}`, nameOf(speaker));
  made.dir = "auto"; // so that the text behind it has a direction of its own
  made.title = "Name this speaker";
  made.tabIndex = -1; // there are thousands: the keyboard has P
  made.dataset.speaker = speaker;
  return made;
}

/** Show the names that speakers have now. */
function rename() {
  for (const each of document.querySelectorAll(".turn .who")) each.textContent = nameOf(each.dataset.speaker);
  for (const tell of watching) tell();
}

/** Give a paragraph an element for each word, with what is marked in it. */
export function fill(turn) {
  const said = turn.element.querySelector(".said");
  if (turn.isFull || said.querySelector("form")) return;
  turn.isFull = true;
  said.replaceChildren();
  let n = 0;
  for (const [i, part] of turn.parts.entries()) {
    let at = part.from;
    if (i > 0) said.append(" ");
    for (const word of part.words) {
      said.append(part.text.slice(at, word.from), spanOf(word, part, n++));
      at = word.to;
    }
    said.append(part.text.slice(at, part.to).trimEnd());
  }
  if (marked?.turn === turn) spanAt(marked)?.classList.add("now");
}

function spanOf(word, part, n) {
  const text = part.text.slice(word.from, word.to);
  const isGone = text === "";
  const made = element(isGone ? "del" : "span", isGone ? "word" : word.was !== undefined ? "word changed" : word.isLow ? "word low" : "word", isGone ? word.was : text);
  if (word.was !== undefined) made.title = isGone ? "deleted" : `heard: ${word.was}`;
  for (const { of, from, to } of finds.get(part.final) ?? []) if (word.from < to && word.to > from && of === part.text) made.classList.add("hit");
  made.dataset.n = n;
  return made;
}

/** Leave a paragraph that nobody sees its text only. */
function empty(turn) {
  const said = turn.element.querySelector(".said");
  if (!turn.isFull || said.querySelector("form") || said.contains(document.activeElement)) return;
  turn.isFull = false;
  said.replaceChildren(turn.parts.map(({ text, from, to }) => text.slice(from, to).trim()).join(" "));
}

/** Show a paragraph again, in which something else is marked now. */
export function refill(turn) {
  if (!turn.isFull) return;
  turn.isFull = false;
  fill(turn);
}

export let finds = new Map(); // final -> [{of, from, to}]: what was found in its text
export function markFinds(found) {
  finds = found;
  turns.forEach(refill);
}

// -- words ------------------------------------------------------------------------------------------

/** All paragraphs. */
export const paragraphs = () => turns;
export const wordsOf = (turn) => (turn.words ??= turn.parts.flatMap(({ words, final }) => words.map((word) => ({ ...word, final }))));
export const wordOf = ({ turn, i }) => wordsOf(turn)[i];
/** The word that sounds, or sounds next: {turn, i}. */
export const current = () => marked;

function spanAt({ turn, i }) {
  fill(turn);
  return turn.element.querySelector(`[data-n="${i}"]`);
}

/** The last word that has begun at a time. */
function wordAt(ms) {
  let [low, high] = [0, turns.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (turns[middle].start_ms <= ms) low = middle + 1;
    else high = middle;
  }
  let n = Math.max(0, low - 1);
  while (n < turns.length && wordsOf(turns[n]).length === 0) n++;
  if (n >= turns.length) return null;
  return { turn: turns[n], i: Math.max(0, wordsOf(turns[n]).findLastIndex(({ start_ms }) => start_ms <= ms)) };
}

/** Mark the word that is said at a time. */
export function mark(ms, scrolls = false) {
  markWord(wordAt(ms), scrolls, ms);
}

function markWord(found, scrolls, ms) {
  $("clock").textContent = clock(ms);
  for (const control of ["edit", "split"]) $(control).disabled = found === null;
  if (found === null || (marked?.turn === found.turn && marked.i === found.i && !scrolls)) return;
  if (marked !== null) spanAt(marked)?.classList.remove("now");
  marked = found;
  const span = spanAt(found);
  span.classList.add("now");
  const { was, text } = wordOf(found);
  $("heard").textContent = was === undefined ? "" : text === "" ? `deleted: ${was}` : `heard: ${was}`;
  const { top, bottom } = span.getBoundingClientRect();
  const frame = $("view").getBoundingClientRect();
  if ((scrolls || !$("sound").paused) && (top < frame.top || bottom > frame.bottom)) span.scrollIntoView({ block: "center" });
}

/** Go to a word. */
export function goTo({ turn, i }) {
  const { text, start_ms, final } = wordOf({ turn, i });
  seek(start_ms, { turn, i });
  const who = turn.speaker === undefined ? "" : `${nameOf(turn.speaker)}, `;
  $("told").textContent = `${text}: ${who}${clock(start_ms)}, ${shown(final).text}`; // for who does not see the mark
}

// -- sound ------------------------------------------------------------------------------------------

const secret = () => sessionStorage.getItem("streamd.token");
export const nowMs = () => (playing ? playing.start_ms + $("sound").currentTime * 1000 - playing.at_ms : marked ? wordOf(marked).start_ms : 0);
const endMs = () => Math.max(session.duration_ms, finals().at(-1)?.end_ms ?? 0);

/** Go to a time of the session, in ms, and mark the word that is said then. */
export function seek(ms, word = wordAt(ms)) {
  const sound = session.sounds.findLast(({ start_ms }) => start_ms <= ms) ?? session.sounds[0];
  markWord(word, true, ms);
  if (sound === undefined) return;
  const at = Math.max(0, ms - sound.start_ms + sound.at_ms);
  clearTimeout(waiting);
  if (playing?.file !== sound.file || (!session.is_over && at > loadedMs - LATE_MS)) load(sound);
  playing = sound;
  $("sound").currentTime = at / 1000;
}

/** Load a sound as far as it is written: of one that goes on, the browser knows no more than that. */
function load(sound) {
  const wasPlaying = !$("sound").paused;
  const query = new URLSearchParams(secret() === null ? {} : { token: secret() });
  if (!session.is_over) query.set("at", endMs());
  loadedMs = session.is_over ? Infinity : endMs() - sound.start_ms + sound.at_ms;
  $("sound").src = `v1/library/audio/${encodeURIComponent(sound.file)}?${query}`;
  $("sound").playbackRate = Number($("speed").value);
  if (wasPlaying) play();
}

const play = () => $("sound").play().catch((error) => error.name !== "AbortError" && toast(`The sound cannot be played: ${error.message}`));

export function toggle() {
  if (session.sounds.length === 0) return toast("Of this session no sound was kept");
  if (!playing) seek(marked ? wordOf(marked).start_ms : 0);
  if ($("sound").paused) play();
  else $("sound").pause();
}

export function skip(seconds) {
  if (playing) seek(Math.max(0, nowMs() + seconds * 1000));
}

export function faster(by) {
  const list = $("speed");
  list.selectedIndex = Math.min(Math.max(0, list.selectedIndex + by), list.options.length - 1);
  list.onchange();
}

/** Hear the last two minutes; what is said meanwhile is still written below. */
export function replay() {
  if (session.sounds.length === 0) return toast("Of this session no sound was kept");
  seek(Math.max(0, endMs() - REPLAY_MS));
  if ($("sound").paused) play();
}

/** Go back to what is being said. */
export function toLive() {
  $("sound").pause();
  $("view").scrollTop = $("view").scrollHeight;
}

$("play").onclick = toggle;
$("back").onclick = () => skip(-SKIP_S);
$("ahead").onclick = () => skip(SKIP_S);
$("replay").onclick = replay;
$("to-live").onclick = toLive;
$("speed").onchange = () => ($("sound").playbackRate = Number($("speed").value));
$("sound").onplay = $("sound").onpause = () => ($("play").textContent = $("sound").paused ? "Play" : "Pause");
$("sound").ontimeupdate = () => {
  if (session === null || !playing) return;
  const next = session.sounds[session.sounds.indexOf(playing) + 1];
  if (next?.file === playing?.file && nowMs() >= (next?.start_ms ?? Infinity)) playing = next;
  if (!$("sound").seeking) mark(nowMs());
};
$("sound").onended = () => {
  const at = nowMs();
  const next = session?.sounds.slice(session.sounds.indexOf(playing) + 1).find(({ file }) => file !== playing.file);
  if (next === undefined && (session?.is_over ?? true)) return;
  const go = () => {
    if (next === undefined) load(playing);
    seek(next === undefined ? at : next.start_ms);
    play();
  };
  // Who has heard all that is written hears more when there is some of it.
  if (next === undefined && endMs() - at < LATE_MS) waiting = setTimeout(() => $("sound").onended(), 2 * LATE_MS);
  else go();
};
$("view").addEventListener("click", ({ target }) => {
  const word = target.closest(".word");
  if (word === null || !getSelection().isCollapsed) return; // who selects words wants to copy them
  const { turn } = word.closest(".turn");
  goTo({ turn, i: Number(word.dataset.n) });
  if (playing && $("sound").paused) toggle();
});

// -- one session, which may go on ---------------------------------------------------------------------

export function close() {
  listening?.stop();
  clearTimeout(asking);
  clearTimeout(waiting);
  askMs = ASKS_MS;
  nearby.disconnect();
  $("sound").pause();
  $("sound").removeAttribute("src");
  $("player").hidden = $("live").hidden = true;
  session = marked = playing = transcript = listening = title = null;
  turns = [];
  finds = new Map();
}

export async function open(id, atMs = null) {
  const answer = await fetched(`sessions/${id}`);
  if (!answer) return;
  session = answer;
  transcript = new Transcript();
  transcript.apply({ type: "hello", epoch: session.epoch, seq: 0, started: session.started });
  for (const event of session.events) transcript.apply(event);
  const began = new Date(session.started);
  title = element("h2", "", `${session.name}, ${day(began)}, ${hour(began)}`);
  document.title = `${title.textContent} – streamd`;
  title.dir = "auto";
  $("shown").replaceChildren(title, otherTexts());
  $("heard").textContent = "";
  for (const control of ["edit", "split"]) $(control).disabled = true;
  draw();
  $("player").hidden = false;
  offerSound();
  follow();
  if (atMs !== null) seek(atMs);
  else if (session.is_live) toLive();
  $("view").focus();
}

/** Links to what else was made of the same sound, such as by --afterwards. */
function otherTexts() {
  const line = element("p", "others");
  for (const [id, name] of Object.entries(session.texts)) {
    const link = element("a", "", `The same sound as ${name}`);
    link.href = `library#${id}`;
    line.append(link, " ");
  }
  line.hidden = line.childElementCount === 0;
  return line;
}

function offerSound() {
  for (const control of ["play", "back", "ahead", "speed"]) $(control).disabled = session.sounds.length === 0;
  $("replay").hidden = session.is_over || session.sounds.length === 0;
  $("to-live").hidden = !session.is_live;
}

function follow() {
  if (session.is_over) return;
  if (!session.is_live) return void (asking = setTimeout(again, ASKS_MS));
  const { id } = session;
  listening = new Listening(session.name, transcript, {
    changed(kind, message) {
      if (session?.id !== id) return;
      if (message.type === "hello" && message.epoch !== session.epoch) return over();
      if (["item", "revised"].includes(kind)) draw();
      if (["correction", "attribution", "name"].includes(message.type)) refresh();
      $("live").hidden = false;
      $("live").textContent = transcript.partial?.text ?? "…";
      if (message.type === "final" && session.sounds.length === 0) refresh();
      if (message.type === "eos") over();
    },
    status(state) {
      if (state === "absent" || state === "ended") over();
      if (state === "lost") $("live").textContent = "streamd cannot be reached: trying again";
    },
  });
}

/** Nobody can listen to the session any more. */
function over() {
  listening?.stop();
  listening = null;
  $("live").hidden = true;
  again();
}

/** Ask what else is known of the session, and what was added since: its text may be by somebody else. */
export async function refresh() {
  const { id, last } = session;
  const answer = await fetched(`sessions/${id}?after=${last}`);
  if (!answer || session?.id !== id) return;
  const { events, ...known } = answer;
  Object.assign(session, known);
  rename();
  // Of a session to which one listens, they have come, or will.
  if (listening === null) for (const event of events) transcript.apply(event);
  askMs = events.length > 0 ? ASKS_MS : Math.min(2 * askMs, MOST_ASKS_MS);
  if (events.length > 0) draw();
  offerSound();
}

async function again() {
  const { id } = session;
  await refresh();
  if (session?.id === id && !session.is_over) asking = setTimeout(again, askMs);
}
