// The caption page: connects transcripts (transcript.js), their view (view.js) and the microphone
// (microphone.js).

import { appearance, keepAwake } from "./appearance.js";
import { Archive } from "./archive.js";
import { ask, storeToken, token, unreachable, Listening } from "./connection.js";
import { Microphone } from "./microphone.js";
import { offerNotices, tellNotice } from "./notices.js";
import { asText, copy, save } from "./saving.js";
import { showInvitation } from "./share.js";
import { expected, noteCorrection, offerContext } from "./context.js";
import { named, namesOf, offerNames, tellNamesBy } from "./speakers.js";
import { store, stored } from "./storage.js";
import { label, Transcript } from "./transcript.js";
import * as translation from "./translation.js";
import * as view from "./view.js";

const $ = (id) => document.getElementById(id);
const LATE_MS = 2000;
const REPLAY_MS = 100;
const LANGUAGES =
  "af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fo fr gl gu ha haw he hi hr ht hu hy id is it ja jw ka kk km kn ko la lb ln lo lt lv mg mi mk ml mn mr ms mt my ne nl nn no oc pa pl ps pt ro ru sa sd si sk sl sn so sq sr su sv sw ta te tg th tk tl tr tt uk ur uz vi yi yo yue zh";

let toastTimer = null;

function toast(text, ms = 2500) {
  $("toast").textContent = text;
  $("toast").hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => ($("toast").hidden = true), ms);
}

// -- the transcript -------------------------------------------------------------------------------

let archive = null;
const OWN = "live"; // the name of the server's own session
let shown = { name: "", isOwn: false }; // the session; whether it is of this page's microphone
let transcript = new Transcript();
let nShown = 0; // items of it
let revisedFrom = Infinity; // the first item that is shown as it was before
let listening = null;

/** Show a session: what this browser has of it, and then what is said. */
async function show(name, { isOwn = false } = {}) {
  listening?.stop();
  listening = null;
  shown = { name, isOwn };
  const kept = (await archive?.load(name)) ?? { isOwn, items: [] };
  if (shown.name !== name || listening !== null) return; // another was chosen meanwhile
  shown.isOwn = kept.isOwn;
  transcript = new Transcript({ saved: { ...kept.state, items: kept.items } });
  view.clear();
  translation.clear();
  namesOf(name);
  view.extend(kept.items, 0);
  nShown = kept.items.length;
  revisedFrom = Infinity;
  listen();
}

function listen() {
  listening?.stop();
  showLag(null);
  listening = new Listening(shown.name, transcript, { changed, status });
  offer(shown.name);
  const query = new URLSearchParams(location.search);
  query.set("session", shown.name);
  history.replaceState(null, "", `?${query}`);
}

/** Show nothing until the microphone begins a session. */
function showNew() {
  microphone.stop();
  listening?.stop();
  listening = null;
  shown = { name: "", isOwn: true };
  transcript = new Transcript();
  nShown = 0;
  translation.clear();
  view.clear(noMicrophone ? `Choose a session above. ${noMicrophone}` : "Start the microphone, or choose a session above.");
  status("idle");
}

function keep(from = transcript.items.length) {
  const { isOwn, name } = shown;
  archive?.save(name, { isOwn, state: transcript.state, items: transcript.items }, from).catch(unkept);
}

function unkept(error) {
  archive = null;
  toast(`This browser does not keep the transcript: ${error.message}`, 8000);
}

function changed(kind, message) {
  if (message.type === "hello") describe(message);
  if (message.type === "stats") tellModel(message.model);
  if (message.type === "correction" && microphone.feeds(shown.name)) noteCorrection(message);
  if (message.type === "name") named(transcript.epoch, message);
  if (message.type === "correction" && message.text === meant) toast(`Expected from now on: ${meant}`);
  if (message.type === "error" && message.code === "bad_option") toast(message.message, 8000);
  const isReplay = message.type === "final" && transcript.seq <= transcript.caughtUpAt;
  if (!isReplay) tellNotice(message, (text) => toast(text, 8000));
  if (kind === "revised") revisedFrom = Math.min(revisedFrom, transcript.revised);
  if (message.type === "hello") keep();
  translation.apply(message, (wanted) => listening?.say(wanted));
  // What has been said for hours comes as thousands of messages: they are drawn together.
  if (transcript.seq < transcript.caughtUpAt) drawing ??= setTimeout(draw, REPLAY_MS);
  else drawing ??= document.hidden ? setTimeout(draw) : requestAnimationFrame(draw);
}

let drawing = null; // until the next picture

function draw() {
  drawing = null;
  const { items } = transcript;
  const from = Math.min(nShown, revisedFrom);
  const isNew = revisedFrom < nShown;
  if (from < items.length) {
    // A screen reader reads new finals aloud, but not a replay of hours.
    const isNews = transcript.seq > transcript.caughtUpAt;
    $("log").ariaLive = isNews ? "polite" : "off";
    if (isNew) view.revise(items, revisedFrom);
    else view.extend(items, nShown, { isNews });
    keep(from);
  }
  nShown = items.length;
  revisedFrom = Infinity;
  offerCorrections();
  view.showPartials(transcript.partials);
  translation.show(items, { isNew });
  showLag(transcript.partial === null ? null : transcript.lagMs);
  view.scrollToEnd();
}
document.addEventListener("visibilitychange", draw); // a hidden page gets no pictures

const languageNames = new Intl.DisplayNames(undefined, { type: "language" });

/** Say what transcribes the session, and in which language. */
function describe({ model, language, task }) {
  const spoken = language === "auto" ? "language detected" : languageNames.of(language);
  $("model").textContent = `Model: ${model}, ${spoken}${task === "translate" ? ", translated into English" : ""}`;
}

/** Say beside the state which smaller model makes the captions, until when; nothing once it is the server's. */
function tellModel(model) {
  const text = model ? `${STATES.live}: ${model}` : STATES.live;
  if ($("status").dataset.state === "live" && $("status").textContent !== text) $("status").textContent = text;
}

function showLag(ms) {
  $("lag").hidden = ms === null;
  $("lag").textContent = ms === null ? "" : `${(ms / 1000).toFixed(1)} s behind`;
  $("lag").classList.toggle("late", ms !== null && ms >= LATE_MS);
}

const STATES = {
  connecting: "connecting",
  live: "live",
  lost: "connection lost, reconnecting",
  ended: "session ended",
  refused: "refused",
  barred: "no captions",
  absent: "waiting for this session",
  none: "no session yet", // nobody has asked for one: this would be the server's own
  idle: "not started",
};
const QUIET = ["lost", "ended", "absent", "barred"]; // trying again is no news
let nStates = 0;

async function status(state, why = "") {
  const before = $("status").dataset.state;
  if (state === "connecting" && QUIET.includes(before)) return;
  const n = ++nStates;
  if (state === "live" && before === "ended") {
    await new Promise((resolve) => setTimeout(resolve, 300)); // the server may only say again that it has ended
    if (n !== nStates) return;
  }
  const displayed = state === "absent" && transcript.items.length > 0 ? "ended" : state; // only this browser has it
  const told = STATES[displayed === "absent" && shown.name === OWN ? "none" : displayed];
  $("status").dataset.state = displayed;
  $("status").textContent = why ? `${told}: ${why}` : told;
  $("hint").classList.toggle("sr", displayed === "barred"); // nothing is being waited for
  keepAwake(displayed === "live");
  offerCorrections();
  if (!QUIET.includes(displayed)) return;
  view.showPartials([]);
  showLag(null);
  translation.interrupt();
  sessions();
  const cause = await unreachable();
  if (cause && n === nStates) $("status").textContent = cause;
}

// -- corrections ----------------------------------------------------------------------------------

let meant = ""; // the newest correction of this page

/** What sends corrections and names of the session, or null if this page may not: it must feed it, or be allowed to. */
function corrector() {
  if (listening?.corrects) return listening;
  if (microphone.feeds(shown.name)) return microphone;
  const isOver = ["ended", "absent", "idle"].includes($("status").dataset.state);
  return isOver && transcript.finals.length > 0 ? ownCopy : null;
}

/** After the end: this browser's copy, and the server's if it has one and this page is its owner's. */
const ownCopy = {
  say(message, place) {
    const { type, text } = message;
    if (type === "name") {
      named(transcript.epoch, message);
      return this.send(message).then((isKept) => isKept || toast("Only this browser has the name: the server does not take it any more.", 6000));
    }
    changed(transcript.correct({ ...place, text }), { type: "copied" });
    toast(`Corrected in this browser: ${text}`);
    const { seq, ...known } = transcript.place(place);
    if (seq === undefined) return;
    this.send({ type, text, seq, ...known });
  },
  send(message) {
    const body = JSON.stringify(message);
    const path = `v1/sessions/${encodeURIComponent(shown.name)}/transcript`;
    return ask(path, { method: "POST", body }).then(({ ok }) => ok, () => false); // it is gone, or this page may not
  },
};

tellNamesBy((run) => (run === transcript.epoch ? corrector() : null)); // the server knows speakers of this run only

function offerCorrections() {
  $("correct").hidden = corrector() === null;
  $("log").classList.toggle("correctable", corrector() !== null);
}

/** Ask what was said where this text is shown; `place`: there, if it is known. */
function correct(shownThere, place) {
  if (corrector() === null) return;
  const heard = shownThere.replace(/^[\p{P}\s]+|[\p{P}\s]+$/gu, "");
  $("heard").value = $("meant").value = heard;
  $("correcting").onclose = () => {
    if ($("correcting").returnValue !== "save") return;
    const known = place !== undefined && $("heard").value === heard;
    meant = $("meant").value.trim();
    const where = known ? place : transcript.find($("heard").value);
    const message = { type: "correct", text: meant, keep: $("keep-word").checked };
    if ("item" in where) Object.assign(message, transcript.place(where));
    corrector()?.say(message, where);
  };
  $("correcting").returnValue = "";
  $("correcting").showModal();
  $("meant").select();
}

$("correct").onclick = () => correct(String(getSelection()));
$("log").onclick = ({ target }) => {
  const word = target.closest("[data-item]");
  if (word === null || !getSelection().isCollapsed) return; // who selects words wants to copy them
  const { item, first, last } = word.dataset;
  correct(word.textContent, { item: Number(item), first: Number(first), last: Number(last) });
};

// -- the list of sessions -------------------------------------------------------------------------

/** Add a transcript to the list if needed, and select it. */
function offer(name) {
  const list = $("session");
  if (![...list.options].some((option) => option.value === name)) list.add(new Option(label(name), name));
  list.value = name;
}

/** Fetch the list of sessions; if the server requires a token, ask the user for it. */
async function sessions() {
  let answer;
  try {
    answer = await ask("v1/sessions");
  } catch {
    return; // the server is unreachable; Listening tries again
  }
  if (answer.status === 401) {
    $("wrong-token").hidden = !token();
    return $("ask").open || $("ask").showModal();
  }
  if (!answer.ok) return;
  const { sessions: all, may, within = "*" } = await answer.json();
  offerMicrophone(may !== "listen");
  microphone.named = (name) => (within.endsWith("*") ? `${within.slice(0, -1)}${name}` : within);
  const known = all.map(({ name }) => name);
  const kept = ((await archive?.list()) ?? []).filter(({ nItems }) => nItems > 0).map(({ name }) => name);
  const asked = new URLSearchParams(location.search).get("session");
  const now = shown.name || (shown.isOwn ? "" : asked);
  // Others speak, whom the visitor may choose; or the visitor may not listen to the server's own captions.
  const preferred = within.endsWith("*") ? OWN : within;
  const isAlone = (known.length > 0 || within !== "*") && !known.includes(preferred);
  const options = [...new Set([...known, ...kept])].map((name) => new Option(label(name), name));
  $("session").replaceChildren(...options, new Option("New transcript", ""));
  if (now === null && isAlone) $("session").value = "";
  else offer(now ?? preferred);
}

$("session").onfocus = sessions;
$("session").onchange = () => ($("session").value ? show($("session").value) : showNew());
$("ask").onclose = () => {
  storeToken($("token").value.trim());
  $("token").value = "";
  begin();
};

// -- the microphone -------------------------------------------------------------------------------

let noMicrophone = ""; // why there is none here

/** Offer it where it can work; the key for it does nothing elsewhere, either. */
function offerMicrophone(may) {
  if (!may) noMicrophone = "This link is for listening.";
  else noMicrophone = navigator.mediaDevices ? "" : "Browsers allow the microphone only on localhost and on https pages.";
  $("microphone").hidden = $("microphone").disabled = noMicrophone !== "";
}

const microphone = new Microphone({
  // After a pause it goes on under the same name, so listeners elsewhere do, too.
  named: (session) => (session === shown.name ? listen() : show(session, { isOwn: true })),
  level: (value) => ($("level").value = value),
  changed: (on) => {
    $("microphone").ariaPressed = String(on);
    $("level").hidden = !on;
    for (const id of ["source", "language", "task"]) $(id).disabled = on;
    nameButton();
    offerCorrections();
    if (on) devices(); // their names are secret until the user has allowed one
  },
  failed: (why) => toast(why, 8000),
});

function nameButton() {
  $("microphone").querySelector(".label").textContent = microphone.on ? "Stop" : "Start";
  $("microphone").querySelector(".what").textContent = $("source").value === "screen" ? "sound" : "microphone";
}

/** Offer the microphones that the browser names. */
async function devices() {
  const found = (await navigator.mediaDevices?.enumerateDevices()) ?? [];
  const list = $("source");
  const now = list.value;
  const named = found.filter(({ kind, label, deviceId }) => kind === "audioinput" && label && deviceId !== "default");
  const screen = [...list.options].filter(({ value }) => value === "" || value === "screen");
  list.replaceChildren(...screen, ...named.map(({ label, deviceId }) => new Option(label, deviceId)));
  list.value = [...list.options].some(({ value }) => value === now) ? now : "";
}

$("microphone").onclick = () => {
  if (microphone.on) return microphone.stop();
  const chosen = ["language", "task"].map((id) => [id, $(id).value]).filter(([, value]) => value !== "");
  return microphone.start($("source").value, { ...Object.fromEntries(chosen), ...expected() }, shown.isOwn ? shown.name : "");
};
addEventListener("beforeunload", (event) => {
  if (microphone.on) event.preventDefault(); // the browser asks whether to leave
});

function choices() {
  const options = LANGUAGES.split(" ").map((code) => new Option(languageNames.of(code === "jw" ? "jv" : code), code));
  options.sort((a, b) => a.text.localeCompare(b.text));
  $("language").append(...options);
  if (!navigator.mediaDevices?.getDisplayMedia) $("source").querySelector("[value=screen]").remove();
  for (const id of ["language", "task"]) {
    $(id).value = stored(id);
    $(id).onchange = () => store(id, $(id).value);
  }
  $("source").onchange = nameButton;
}

// -- copy, download, clear ------------------------------------------------------------------------

$("copy").onclick = async () => {
  const { finals, items } = transcript;
  if (await copy(asText(items))) toast(`Copied ${finals.length} ${finals.length === 1 ? "line" : "lines"}`);
  else toast("The browser does not allow copying here: download the text instead", 6000);
};

for (const button of document.querySelectorAll("[data-format]")) {
  button.onclick = async () => {
    const note = await save(button.dataset.format, shown.name, transcript);
    if (note) toast(note, 8000);
  };
}

$("clear").onclick = () => {
  transcript.forget();
  nShown = 0;
  translation.clear();
  view.clear("Cleared. New text will appear here.");
  keep();
};

$("settings").onbeforetoggle = offerNames;

$("share").onclick = () => showInvitation(shown.name, toast);

// -- keyboard -------------------------------------------------------------------------------------

const KEYS = { m: "microphone", "+": "larger", "=": "larger", "-": "smaller", f: "full", c: "copy", s: "share", w: "correct", End: "follow" };

$("keys").ariaPressed = stored("keys", "true");
$("keys").onclick = () => {
  // Who dictates to the computer must be able to switch single letters off (WCAG 2.1.4).
  $("keys").ariaPressed = String($("keys").ariaPressed !== "true");
  store("keys", $("keys").ariaPressed);
};
addEventListener("keydown", (event) => {
  const { key, target } = event;
  const isTyping = target.closest("select, input, dialog");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || $("keys").ariaPressed !== "true") return;
  const button = $(KEYS[key.length === 1 ? key.toLowerCase() : key]);
  if (button === null) return;
  event.preventDefault(); // it may open a field, into which the key would be typed
  button.click();
});

async function begin() {
  archive ??= await Archive.open().catch(() => null); // without one nothing is kept
  await sessions();
  if ($("ask").open) return;
  if ($("session").value) show($("session").value);
  else showNew();
}

appearance(view.scrollToEnd);
choices();
offerNotices();
offerMicrophone(true);
offerContext({ toast, update: (choices) => microphone.update(choices) });
devices();
begin();
