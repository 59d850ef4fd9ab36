// The caption page: connects a transcript (transcript.js) to the document. Text from the network is
// only ever set as text, never as HTML.

import { ask, storeToken, Listening } from "./connection.js";
import { FORMATS } from "./formats.js";
import { Microphone } from "./microphone.js";
import { clock, placed, Transcript } from "./transcript.js";

const $ = (id) => document.getElementById(id);
const root = document.documentElement;
const SIZES_REM = [1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6.5, 8];
const LATE_MS = 2000;
const MAX_LINES = 1000;

// -- settings kept in the browser -----------------------------------------------------------------

const stored = (name, otherwise) => localStorage.getItem(`streamd.${name}`) ?? otherwise;
const store = (name, value) => localStorage.setItem(`streamd.${name}`, value);
const prefers = (feature) => matchMedia(`(${feature})`).matches;

const settings = {
  theme: stored("theme", prefers("prefers-color-scheme: light") ? "light" : "dark"),
  contrast: stored("contrast", prefers("prefers-contrast: more") ? "high" : "normal"),
  confidence: stored("confidence", "off"),
  size: stored("size", ""),
};

function applySettings() {
  root.dataset.theme = settings.theme;
  root.dataset.contrast = settings.contrast;
  root.dataset.confidence = settings.confidence;
  if (settings.size) root.style.setProperty("--size", `${settings.size}rem`);
  $("contrast").ariaPressed = String(settings.contrast === "high");
  $("confidence").ariaPressed = String(settings.confidence === "on");
  $("theme").textContent = settings.theme === "dark" ? "Light" : "Dark";
  scrollToEnd();
}

function set(name, value) {
  settings[name] = value;
  store(name, value);
  applySettings();
}

function resize(by) {
  const now = parseFloat(getComputedStyle(root).getPropertyValue("--size"));
  const at = SIZES_REM.findIndex((size) => size >= now);
  set("size", String(SIZES_REM[Math.min(SIZES_REM.length - 1, Math.max(0, at + by))]));
}

$("smaller").onclick = () => resize(-1);
$("larger").onclick = () => resize(1);
$("theme").onclick = () => set("theme", settings.theme === "dark" ? "light" : "dark");
$("contrast").onclick = () => set("contrast", settings.contrast === "high" ? "normal" : "high");
$("confidence").onclick = () => set("confidence", settings.confidence === "on" ? "off" : "on");

// -- following the newest line --------------------------------------------------------------------

const scroll = $("scroll");
let following = true;

function scrollToEnd() {
  if (following) scroll.scrollTop = scroll.scrollHeight;
}

scroll.addEventListener("scroll", () => {
  following = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 40;
  $("follow").hidden = following;
});
$("follow").onclick = () => {
  following = true;
  $("follow").hidden = true;
  scrollToEnd();
};
addEventListener("resize", scrollToEnd);

// -- text -----------------------------------------------------------------------------------------

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

const rank = (prob) => (prob >= 0.8 ? "w0" : prob >= 0.6 ? "w1" : prob >= 0.4 ? "w2" : "w3");

/** Yield the text from `from` to `to` as nodes, with the words marked by confidence. */
function* marked(event, from, to) {
  let at = from;
  for (const word of placed(event.text, event.words)) {
    if (word.from < from || word.to > to) continue;
    yield document.createTextNode(event.text.slice(at, word.from));
    yield element("span", rank(word.prob), event.text.slice(word.from, word.to));
    at = word.to;
  }
  yield document.createTextNode(event.text.slice(at, to));
}

const GAPS = {
  overrun: "the microphone's driver overflowed",
  engine: "the engine was too slow",
  device: "the device was disconnected",
  restart: "the server was restarted",
  resume: "the client had lost it",
};

function rendered(item) {
  if (item.type === "final") {
    const line = element("p", "final");
    const text = element("span", "text");
    text.dir = "auto";
    text.lang = item.language;
    text.append(...marked(item, 0, item.text.length));
    const time = element("time", "", clock(item.start_ms));
    time.ariaHidden = "true"; // a screen reader should not read the time before each sentence
    line.append(time, text);
    return line;
  }
  if (item.type === "gap") {
    const seconds = (item.duration_ms / 1000).toFixed(1);
    return element("p", "note", `${seconds} s of audio lost (${GAPS[item.why] ?? item.why})`);
  }
  if (item.type === "missed" && item.why === "retention") {
    return element("p", "note", "The server no longer has older text.");
  }
  return element("p", "note quiet", "The session was restarted.");
}

function showPartial(partial) {
  const line = $("partial");
  line.replaceChildren();
  if (partial !== null) {
    const stable = element("span", "stable");
    stable.append(...marked(partial, 0, partial.stable));
    line.append(stable, ...marked(partial, partial.stable, partial.text.length));
  }
}

function showLag(ms) {
  $("lag").hidden = ms === null;
  $("lag").textContent = ms === null ? "" : `${(ms / 1000).toFixed(1)} s behind`;
  $("lag").classList.toggle("late", ms !== null && ms >= LATE_MS);
}

// -- the session ----------------------------------------------------------------------------------

let transcript = new Transcript();
let listening = null;

function listen(session) {
  listening?.stop();
  transcript = new Transcript();
  $("log").replaceChildren();
  showPartial(null);
  showLag(null);
  $("hint").hidden = false;
  listening = new Listening(session, transcript, { changed, status });
  if ($("session").value !== session) offer(session);
}

function changed(kind) {
  if (kind === "item") {
    const item = transcript.items.at(-1);
    // A screen reader reads new finals aloud, but not a replay of hours.
    $("log").ariaLive = transcript.seq > transcript.caughtUpAt ? "polite" : "off";
    $("log").append(rendered(item));
    // Hours of lines make a page slow. Removed lines can still be copied and downloaded, and
    // nothing is removed while the user has scrolled up to read.
    while (following && $("log").childElementCount > MAX_LINES) $("log").firstElementChild.remove();
    $("hint").hidden = true;
  }
  if (transcript.partial !== null) $("hint").hidden = true;
  showPartial(transcript.partial);
  showLag(transcript.partial === null ? null : transcript.lagMs);
  scrollToEnd();
}

const STATES = {
  connecting: "connecting",
  live: "live",
  lost: "connection lost, reconnecting",
  ended: "session ended",
  refused: "refused",
};

function status(state, why = "") {
  $("status").dataset.state = state;
  $("status").textContent = STATES[state];
  if (why) $("status").textContent += `: ${why}`;
  if (state === "lost" || state === "ended") {
    showPartial(null);
    sessions();
  }
}

/** Add a session to the list if needed, and select it. */
function offer(session) {
  const list = $("session");
  if (![...list.options].some((option) => option.value === session)) {
    list.add(new Option(session, session));
  }
  list.value = session;
}

/** Fetch the list of sessions; if the server requires a token, ask the user for it. */
async function sessions() {
  let answer;
  try {
    answer = await ask("v1/sessions");
  } catch {
    return; // the server is unreachable; Listening tries again
  }
  if (answer.status === 401) return $("ask").open || $("ask").showModal();
  if (!answer.ok) return;
  const known = (await answer.json()).sessions;
  const now = listening?.session ?? new URLSearchParams(location.search).get("session");
  $("session").replaceChildren(...known.map(({ name }) => new Option(name, name)));
  offer(now ?? (known.length === 0 || known.some(({ name }) => name === "live") ? "live" : known[0].name));
}

$("session").onfocus = sessions;
$("session").onchange = () => listen($("session").value);
$("ask").onclose = () => {
  storeToken($("token").value.trim());
  $("token").value = "";
  begin();
};

// -- the microphone -------------------------------------------------------------------------------

const microphone = new Microphone({
  named: (session) => listen(session),
  level: (value) => ($("level").value = value),
  changed: (on) => {
    $("microphone").ariaPressed = String(on);
    $("microphone").querySelector(".label").textContent = on ? "Stop microphone" : "Start microphone";
    $("level").hidden = !on;
  },
  failed: (why) => toast(why, 8000),
});

$("microphone").onclick = () => (microphone.on ? microphone.stop() : microphone.start());

// -- copy, download, clear ------------------------------------------------------------------------

let toastTimer = null;

function toast(text, ms = 2500) {
  $("toast").textContent = text;
  $("toast").hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => ($("toast").hidden = true), ms);
}

$("copy").onclick = async () => {
  const { finals } = transcript;
  try {
    await navigator.clipboard.writeText(FORMATS.txt.text(finals));
    toast(`Copied ${finals.length} lines`);
  } catch {
    toast("The browser does not allow copying here: download the text instead", 6000);
  }
};

for (const button of document.querySelectorAll("[data-format]")) {
  const { format } = button.dataset;
  button.onclick = () => {
    const { mime, text } = FORMATS[format];
    const link = element("a", "");
    link.href = URL.createObjectURL(new Blob([text(transcript.finals)], { type: `${mime};charset=utf-8` }));
    link.download = `${listening.session}.${format}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  };
}

$("clear").onclick = () => $("log").replaceChildren();

async function begin() {
  await sessions();
  if (!$("ask").open) listen($("session").value || "live");
}

applySettings();
begin();
