// The library: sessions by day, search, files that are transcribed, and one session (reading.js), in
// which one finds places (finding.js) and edits (editing.js).

import { $, day, element, fetched, hour } from "./asking.js";
import { storeToken } from "./connection.js";
import * as editing from "./editing.js";
import * as exporting from "./exporting.js";
import * as finding from "./finding.js";
import * as reading from "./reading.js";
import { stored } from "./storage.js";
import { clock } from "./transcript.js";
import * as uploading from "./uploading.js";

const MOST = 200; // sessions that the server lists at once
const SKIP_S = 5;

// -- lists ----------------------------------------------------------------------------------------

async function list(before = 0) {
  const answer = await fetched(`sessions?before=${before}`);
  if (!answer) return;
  if (before === 0) $("shown").replaceChildren();
  else $("older").remove();
  const { sessions } = answer;
  if (sessions.length === 0 && before === 0) {
    $("shown").append(element("p", "", "Nothing is kept yet: sessions appear here when somebody has spoken."));
  }
  for (const each of sessions) {
    const began = new Date(each.started);
    if ($("shown").dataset.day !== day(began) || !$("shown").querySelector("ul")) {
      $("shown").append(element("h2", "", day(began)), element("ul", ""));
      $("shown").dataset.day = day(began);
    }
    const link = element("a", "");
    link.href = `library#${each.id}`;
    const about = [hour(began), clock(each.duration_ms), ...(each.is_live ? ["goes on"] : []), ...each.speakers].join(" · ");
    const first = element("p", "", each.first || "no words");
    first.dir = "auto";
    link.append(element("strong", "", each.name), " ", element("span", "", about), first);
    const item = element("li", "");
    item.append(link);
    $("shown").lastElementChild.append(item);
  }
  if (sessions.length < MOST) return;
  const more = element("button", "", "Older sessions");
  more.id = "older";
  more.onclick = () => list(sessions.at(-1).id);
  $("shown").append(more);
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
  $("told").textContent = count.textContent;
  $("shown").replaceChildren(count, found);
}

// -- where one is, and the keyboard -----------------------------------------------------------------

function route() {
  reading.close();
  editing.forget();
  finding.forget();
  uploading.hide();
  const [, id, at] = /^#(\d+)(?:@(\d+))?$/.exec(location.hash) ?? [];
  const query = new URLSearchParams(location.search).get("q");
  $("query").value = query ?? "";
  if (id !== undefined) reading.open(id, at === undefined ? null : Number(at));
  else if (query) {
    document.title = `${query} – Library – streamd`;
    search(query);
  } else {
    document.title = "Library – streamd";
    uploading.show(list);
    list();
  }
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
function openTools(isOpen) {
  $("player").classList.toggle("open", isOpen);
  $("more").setAttribute("aria-expanded", isOpen);
}
$("more").onclick = () => openTools(!$("player").classList.contains("open"));
$("player").addEventListener("keydown", ({ key }) => key === "Escape" && openTools(false));
$("view").addEventListener("pointerdown", () => openTools(false));
$("export").onclick = () => exporting.open(reading.session.id);
$("keys").onclick = () => $("help").showModal();

function find() {
  openTools(true);
  $("inside-query").focus();
  $("inside-query").select();
}

/** What keys do while a session is open, as it is told: [keys, as they are written, what, act]. */
const KEYS = [
  [["k", " ", "MediaPlayPause"], "K, space", "play, pause", reading.toggle],
  [["j", "ArrowLeft"], "J, ←", "back 5 s", () => reading.skip(-SKIP_S)],
  [["l", "ArrowRight"], "L, →", "5 s ahead", () => reading.skip(SKIP_S)],
  [["<"], "<", "slower", () => reading.faster(-1)],
  [[">"], ">", "faster", () => reading.faster(1)],
  [["r"], "R", "hear the last two minutes of a session that goes on", reading.replay],
  [["g"], "G", "go to what is being said", reading.toLive],
  [["f"], "F", "find in this session", find],
  [["F3"], "F3, Shift F3", "next, previous place that was found", ({ shiftKey }) => finding.next(shiftKey ? -1 : 1)],
  [["n"], "N", "next doubtful word", () => finding.doubtful(1)],
  [["b"], "B", "previous doubtful word", () => finding.doubtful(-1)],
  [["p"], "P", "next speaker", () => finding.speaker(1)],
  [["o"], "O", "previous speaker", () => finding.speaker(-1)],
  [["e"], "E", "edit the sentence", editing.edit],
  [["s"], "S", "somebody else speaks from this word on", editing.split],
  [["w"], "W", "who is this speaker?", () => reading.current()?.turn.speaker && editing.name(reading.current().turn.speaker)],
  [["x"], "X", "save as a file", () => exporting.open(reading.session.id)],
  [["u"], "U", "undo", editing.undo],
  [["y"], "Y", "do it again", editing.redo],
];

for (const [, written, what] of [...KEYS, [[], "/", "search the library"], [[], "?", "show this list"]]) {
  $("key-list").append(element("dt", "", written), element("dd", "", what));
}

addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, select, textarea, dialog, a");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    return $("query").focus();
  }
  if (event.key === "?") return $("help").showModal();
  const act = KEYS.find(([keys]) => keys.includes(event.key))?.[3];
  if (reading.session === null || !act || (event.key === " " && event.target.closest("button, summary"))) return;
  event.preventDefault();
  act(event);
});
addEventListener("popstate", route);
document.documentElement.dataset.theme = stored("theme") || (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark");
route();
