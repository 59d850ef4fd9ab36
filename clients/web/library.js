// The library: sessions by day, search, and one session with its sound. A click on a word plays it;
// the word that sounds is marked; words are corrected and speakers named in place.

import { ask, storeToken } from "./connection.js";
import { parts } from "./speakers.js";
import { stored } from "./storage.js";
import { clock, corrected, placed, Transcript } from "./transcript.js";

const $ = (id) => document.getElementById(id);
const SKIP_S = 5;
const MOST = 200; // sessions that the server lists at once
const PAUSE_MS = 2000; // begins a paragraph
const DOUBTFUL = 0.5; // probability below which a word is marked
const COLOURS = 7; // of speakers, in style.css

let session = null; // the one that is open, as the server gave it
let finals = []; // of it, as they were sent, with their corrections
let spoken = []; // [{element, start_ms, end_ms}] in order of time
let marked = null; // of these
let done = []; // corrections that can be undone, the newest last
let playing = null; // the sound that is loaded

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

function toast(text) {
  $("toast").textContent = text;
  $("toast").hidden = false;
  setTimeout(() => ($("toast").hidden = true), 4000);
}

/** What the server answers, or null: then it was said why. */
async function fetched(path, options) {
  let answer;
  try {
    answer = await ask(`v1/library/${path}`, options);
  } catch {
    return void toast("streamd cannot be reached");
  }
  if (answer.status === 401) return void $("ask").showModal();
  if (answer.status === 204) return {};
  const isJson = answer.headers.get("Content-Type") === "application/json";
  const body = isJson ? await answer.json() : (await answer.text()).trim();
  if (!answer.ok && answer.status !== 409) return void toast(body.error ?? body);
  return answer.status === 409 ? { ...body, isOvertaken: true } : body;
}

// -- lists ----------------------------------------------------------------------------------------

const day = (date) => date.toLocaleDateString([], { weekday: "long", year: "numeric", month: "long", day: "numeric" });
const hour = (date) => date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

function close() {
  $("sound").pause();
  $("player").hidden = true;
  session = marked = playing = null;
  spoken = [];
}

async function list(before = 0) {
  const answer = await fetched(`sessions?before=${before}`);
  if (!answer) return;
  if (before === 0) $("view").replaceChildren();
  else $("older").remove();
  const { sessions } = answer;
  if (sessions.length === 0 && before === 0) {
    $("view").append(element("p", "", "Nothing is kept yet: sessions appear here when somebody has spoken."));
  }
  for (const each of sessions) {
    const began = new Date(each.started);
    if ($("view").dataset.day !== day(began) || !$("view").querySelector("ul")) {
      $("view").append(element("h2", "", day(began)), element("ul", ""));
      $("view").dataset.day = day(began);
    }
    const link = element("a", "");
    link.href = `library#${each.id}`;
    const about = [hour(began), clock(each.duration_ms), ...each.speakers].join(" · ");
    const first = element("p", "", each.first);
    first.dir = "auto";
    link.append(element("strong", "", each.name), " ", element("span", "", about), first);
    const item = element("li", "");
    item.append(link);
    $("view").lastElementChild.append(item);
  }
  if (sessions.length < MOST) return;
  const more = element("button", "", "Older sessions");
  more.id = "older";
  more.onclick = () => list(sessions.at(-1).id);
  $("view").append(more);
}

/** A text with the places that were found marked. */
function* withMarks(text, marks) {
  let at = 0;
  const letters = [...text]; // the server counts characters, not UTF-16
  for (const [from, to] of marks) {
    yield letters.slice(at, from).join("");
    yield element("mark", "", letters.slice(from, to).join(""));
    at = to;
  }
  yield letters.slice(at).join("");
}

async function search(query) {
  const answer = await fetched(`search?${new URLSearchParams({ q: query })}`);
  if (!answer) return;
  const rows = answer.hits.map((hit) => {
    const link = element("a", "");
    link.href = `library#${hit.id}@${hit.start_ms}`;
    const said = element("p", "");
    said.dir = "auto";
    said.append(...(hit.speaker ? [element("strong", "", `${hit.speaker}: `)] : []), ...withMarks(hit.text, hit.marks));
    link.append(element("span", "", `${day(new Date(hit.said))} · ${hit.session} · ${clock(hit.start_ms)}`), said);
    const item = element("li", "");
    item.append(link);
    return item;
  });
  const found = element("ul", "found");
  found.append(...rows);
  const n = rows.length === 1 ? "1 sentence" : `${rows.length} sentences, the newest first`;
  const count = element("h2", "", rows.length ? n : "Nothing was found");
  count.role = "status";
  $("view").replaceChildren(count, found);
}

// -- one session ----------------------------------------------------------------------------------

async function open(id, atMs = null) {
  const answer = await fetched(`sessions/${id}`);
  if (!answer) return;
  session = answer;
  const transcript = new Transcript();
  transcript.apply({ type: "hello", epoch: session.epoch, seq: 0, started: session.started });
  for (const event of session.events) transcript.apply(event);
  finals = transcript.finals;
  draw();
  $("player").hidden = false;
  $("edit").disabled = true;
  for (const control of ["play", "back", "ahead", "speed"]) $(control).disabled = session.sounds.length === 0;
  if (atMs !== null) seek(atMs);
  $("view").focus();
}

const nameOf = (speaker) => session.names[speaker] ?? `Speaker ${speaker}`;

function draw() {
  const at = marked?.start_ms;
  const title = element("h2", "", `${session.name}, ${day(new Date(session.started))}, ${hour(new Date(session.started))}`);
  const shown = [title];
  spoken = [];
  let last = null;
  let speaker;
  for (const [n, plain] of finals.entries()) {
    const final = corrected(plain);
    const places = placed(final.text, final.words);
    for (const part of parts(final)) {
      const isNew = last === null || final.start_ms - last.end_ms >= PAUSE_MS || part.speaker !== speaker || part.from > 0;
      const turn = isNew ? element("p", "turn") : shown.at(-1);
      if (isNew) {
        turn.dir = "auto";
        turn.lang = final.language;
        turn.append(element("time", "", clock(final.words.find((_, i) => places[i]?.from >= part.from)?.start_ms ?? final.start_ms)));
        if (part.speaker !== undefined) turn.append(tag(part.speaker), " ");
        shown.push(turn);
      } else turn.append(" ");
      turn.append(...words(final, n, part, places));
      speaker = part.speaker;
      last = final;
    }
  }
  $("view").replaceChildren(...shown);
  marked = null;
  if (at !== undefined) mark(at);
}

function tag(speaker) {
  const made = element("button", `who who${speaker % COLOURS}`, nameOf(speaker));
  made.title = "Name this speaker";
  made.tabIndex = document.querySelector(".who") ? -1 : 0;
  made.onclick = () => rename(speaker);
  return made;
}

function* words(final, n, part, places) {
  let at = part.from;
  for (const [i, place] of places.entries()) {
    if (place.from < part.from || place.to > part.to) continue;
    const word = final.words[i];
    yield final.text.slice(at, place.from);
    const kind = word.was !== undefined ? "word changed" : word.prob < DOUBTFUL ? "word low" : "word";
    const shown = element("span", kind, final.text.slice(place.from, place.to));
    if (word.was !== undefined) shown.title = `heard: ${word.was}`;
    Object.assign(shown.dataset, { n, first: word.first, last: word.last });
    spoken.push({ element: shown, start_ms: word.start_ms, end_ms: word.end_ms });
    yield shown;
    at = place.to;
  }
  yield final.text.slice(at, part.to);
}

// -- sound ----------------------------------------------------------------------------------------

const secret = () => sessionStorage.getItem("streamd.token");
const nowMs = () => (playing ? playing.start_ms + $("sound").currentTime * 1000 - playing.at_ms : 0);

/** Go to a time of the session, in ms, and mark the word that is said then. */
function seek(ms) {
  const sound = session.sounds.findLast(({ start_ms }) => start_ms <= ms) ?? session.sounds[0];
  mark(ms, true);
  if (sound === undefined) return;
  if (playing?.file !== sound.file) {
    const query = secret() === null ? "" : `?${new URLSearchParams({ token: secret() })}`;
    $("sound").src = `v1/library/audio/${encodeURIComponent(sound.file)}${query}`;
    $("sound").playbackRate = Number($("speed").value);
  }
  playing = sound;
  $("sound").currentTime = Math.max(0, (ms - sound.start_ms + sound.at_ms) / 1000);
}

/** Mark the word that is said at a time. */
function mark(ms, scrolls = false) {
  $("clock").textContent = clock(ms);
  let [low, high] = [0, spoken.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spoken[middle].start_ms <= ms) low = middle + 1;
    else high = middle;
  }
  const found = spoken[Math.max(0, low - 1)] ?? null;
  $("edit").disabled = found === null;
  if (found === marked) return;
  marked?.element.classList.remove("now");
  found?.element.classList.add("now");
  marked = found;
  const { top, bottom } = found?.element.getBoundingClientRect() ?? {};
  const frame = $("view").getBoundingClientRect();
  if (found && (scrolls || !$("sound").paused) && (top < frame.top || bottom > frame.bottom)) {
    found.element.scrollIntoView({ block: "center" });
  }
}

function toggle() {
  if (!playing) seek(marked?.start_ms ?? spoken[0]?.start_ms ?? 0);
  if ($("sound").paused) $("sound").play().catch((error) => toast(`The sound cannot be played: ${error.message}`));
  else $("sound").pause();
}

function skip(seconds) {
  if (playing) seek(Math.max(0, nowMs() + seconds * 1000));
}

/** Go to the next word that may have been misheard, and play no further. */
function nextDoubtful() {
  const next = spoken.slice(spoken.indexOf(marked) + 1).find(({ element }) => element.classList.contains("low"));
  $("sound").pause();
  if (next) seek(next.start_ms);
  else toast("No doubtful word follows");
}

function faster(by) {
  const list = $("speed");
  list.selectedIndex = Math.min(Math.max(0, list.selectedIndex + by), list.options.length - 1);
  list.onchange();
}

$("play").onclick = toggle;
$("back").onclick = () => skip(-SKIP_S);
$("ahead").onclick = () => skip(SKIP_S);
$("speed").onchange = () => ($("sound").playbackRate = Number($("speed").value));
$("sound").onplay = $("sound").onpause = () => ($("play").textContent = $("sound").paused ? "Play" : "Pause");
$("sound").ontimeupdate = () => {
  if (session === null) return;
  const next = session.sounds[session.sounds.indexOf(playing) + 1];
  if (next?.file === playing?.file && nowMs() >= (next?.start_ms ?? Infinity)) playing = next;
  mark(nowMs());
};
$("sound").onended = () => {
  const next = session?.sounds.slice(session.sounds.indexOf(playing) + 1).find(({ file }) => file !== playing.file);
  if (next === undefined) return;
  seek(next.start_ms);
  $("sound").play();
};

// -- changes --------------------------------------------------------------------------------------

/** Ask for a text; calls `save` with it. */
function change(what, text, save) {
  $("what").textContent = what;
  $("text").value = text;
  $("changing").onclose = () => {
    if ($("changing").returnValue === "save") save($("text").value.trim());
  };
  $("changing").returnValue = "";
  $("changing").showModal();
  $("text").select();
}

async function correct({ n, first, last, text, was }, canUndo = true) {
  const { seq } = finals[n];
  const body = JSON.stringify({ seq, first, last, text, revision: session.revision });
  const answer = await fetched(`sessions/${session.id}/corrections`, { method: "POST", body });
  if (!answer) return;
  if (answer.isOvertaken) {
    toast("Somebody else has corrected this session meanwhile: look again, then correct");
    return open(session.id);
  }
  session.revision = answer.revision;
  const others = (finals[n].corrections ?? []).filter((each) => each.last < first || each.first > last);
  finals[n] = { ...finals[n], corrections: [...others, { first, last, text }] };
  if (canUndo) done.push({ n, first, last, text: was, id: session.id });
  $("undo").hidden = done.length === 0;
  draw();
}

function edit() {
  if (!marked) return;
  $("sound").pause();
  const { n, first, last } = Object.fromEntries(Object.entries(marked.element.dataset).map(([key, value]) => [key, Number(value)]));
  const was = marked.element.textContent.replace(/^[\p{P}]+|[\p{P}]+$/gu, "");
  change("What was said here?", was, (text) => text && text !== was && correct({ n, first, last, text, was }));
}

async function undo() {
  const last = done.pop();
  if (last?.id === session?.id) await correct(last, false);
  $("undo").hidden = done.length === 0;
}

function rename(speaker) {
  change(`What is ${nameOf(speaker)} called?`, session.names[speaker] ?? "", async (name) => {
    const body = JSON.stringify({ [speaker]: name });
    const answer = await fetched(`sessions/${session.id}/names`, { method: "PUT", body });
    if (!answer) return;
    session.names = answer.names;
    draw();
  });
}

$("edit").onclick = edit;
$("undo").onclick = undo;
$("delete").onclick = () => {
  const { id, name } = session;
  change(`Delete this session, its text and its audio? Write its name: ${name}`, "", async (text) => {
    if (text !== name) return toast("It was not deleted: the name is another");
    if (await fetched(`sessions/${id}`, { method: "DELETE" })) location.hash = "";
  });
};
$("view").onclick = ({ target }) => {
  const word = target.closest(".word");
  if (word === null || !getSelection().isCollapsed) return; // who selects words wants to copy them
  seek(spoken.find(({ element }) => element === word).start_ms);
  if (playing && $("sound").paused) toggle();
};
$("view").ondblclick = ({ target }) => target.closest(".word") && edit();

// -- where one is, and the keyboard -----------------------------------------------------------------

function route() {
  done = [];
  $("undo").hidden = true;
  close();
  const [, id, at] = /^#(\d+)(?:@(\d+))?$/.exec(location.hash) ?? [];
  const query = new URLSearchParams(location.search).get("q");
  $("query").value = query ?? "";
  if (id !== undefined) open(id, at === undefined ? null : Number(at));
  else if (query) search(query);
  else list();
}

$("seek").onsubmit = (event) => {
  event.preventDefault();
  const query = $("query").value.trim();
  history.pushState(null, "", query ? `library?${new URLSearchParams({ q: query })}` : "library");
  route();
};
$("home").onclick = (event) => {
  event.preventDefault();
  history.pushState(null, "", "library");
  route();
};
$("ask").onclose = () => {
  storeToken($("token").value.trim());
  route();
};

const KEYS = { k: toggle, " ": toggle, j: () => skip(-SKIP_S), l: () => skip(SKIP_S), ArrowLeft: () => skip(-SKIP_S), ArrowRight: () => skip(SKIP_S), "<": () => faster(-1), ">": () => faster(1), e: edit, u: undo, n: nextDoubtful, MediaPlayPause: toggle };

addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, select, dialog, a");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    return $("query").focus();
  }
  const act = KEYS[event.key];
  if (session === null || !act || (event.key === " " && event.target.closest("button"))) return;
  event.preventDefault();
  act();
});
addEventListener("popstate", route);
document.documentElement.dataset.theme = stored("theme") || (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark");
route();
