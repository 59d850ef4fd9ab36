// Files that are sent to the library and transcribed there, one after the other.

import { $, element, fetched, toast, UNREACHED } from "./asking.js";
import { clock } from "./transcript.js";

const ASKS_MS = 2000;
const MOST_TRIES = 5; // to send a file that the browser cannot read any more
let unsent = []; // files that are not in the queue yet: {id, name, file, wanted, error, tries}
let sending = null; // the one that is on its way
let asking = null; // the timer
let isShown = false;
let seen = new Set(); // of jobs
let told = () => {}; // called when one is done

/** Show the files; `done` is called when one is transcribed. */
export function show(done) {
  told = done;
  isShown = true;
  sendAll();
}

export function hide() {
  isShown = false;
  $("files").hidden = true;
  clearTimeout(asking);
  asking = null;
}

async function ask() {
  clearTimeout(asking);
  const answer = await fetched("uploads");
  if (!answer) return void (isShown && (asking = setTimeout(ask, ASKS_MS)));
  const { uploads } = answer;
  $("files").hidden = !isShown || !uploads;
  if ($("files").hidden) return;
  const now = new Set(uploads.map(({ id }) => id));
  if ([...seen].some((id) => !now.has(id))) told();
  seen = now;
  draw(uploads);
  if (uploads.some(({ state }) => state !== "failed") || sending !== null) asking = setTimeout(ask, ASKS_MS);
}

/** Show the files that there are now; rows that stay are left alone, so that a press is not lost. */
function draw(uploads) {
  const ours = unsent.map(({ id, name, error }) => ({ id, name, error, state: error ? "failed" : id === sending?.id ? "sending" : "unsent" }));
  const rows = [...uploads, ...ours].map((job) => {
    const row = document.querySelector(`#queue [data-job="${job.id}"]`) ?? element("li", "");
    const state = JSON.stringify(job);
    if (row.dataset.state === state) return row;
    Object.assign(row.dataset, { job: job.id, state });
    const name = element(job.session ? "a" : "strong", "", job.name);
    name.dir = "auto";
    if (job.session) name.href = `library#${job.session}`;
    row.replaceChildren(name, " ", element("span", job.state === "failed" ? "failed" : "", about(job)));
    if (job.state === "running") {
      const bar = element("progress", "");
      bar.setAttribute("aria-label", job.name);
      if (job.duration_ms > 0) Object.assign(bar, { max: job.duration_ms, value: job.reached_ms });
      row.append(bar);
    }
    if (job.state === "failed") row.append(button("Try again", job, "POST"));
    if (job.state !== "sending") row.append(button("Remove", job, "DELETE"));
    return row;
  });
  $("queue").replaceChildren(...rows);
}

function about({ state, error, reached_ms, duration_ms }) {
  if (state === "waiting") return "waits";
  if (state === "sending") return "is being sent";
  if (state === "unsent") return "is not sent yet";
  if (state === "failed") return error;
  return duration_ms > 0 ? `${clock(reached_ms)} of ${clock(duration_ms)}` : "is being read";
}

function button(text, { id, name }, method) {
  const made = element("button", "", text);
  made.setAttribute("aria-label", `${text}: ${name}`);
  made.onclick = async () => {
    const ours = unsent.find((each) => each.id === id);
    if (ours === undefined) return void ((await fetched(`uploads/${id}`, { method })) && ask());
    if (method === "POST") Object.assign(ours, { error: "", tries: 0, wanted: wanted() });
    else unsent = unsent.filter((each) => each !== ours);
    sendAll();
  };
  return made;
}

/** A name for a file, by which streamd knows it when it is sent again. */
const newKey = () => [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** What is chosen now. */
function wanted() {
  const [some, n] = [$("apart").value === "some", Number($("apart").value)];
  return { language: $("spoken").value.trim(), hotwords: $("expected").value.trim(), ...(some ? { speakers: true } : n ? { num_speakers: n } : {}) };
}

/** Send files, one after the other. */
function send(files) {
  unsent.push(...files.map((file) => ({ id: newKey(), name: file.name, file, wanted: wanted(), error: "", tries: 0 })));
  sendAll();
}

async function sendAll() {
  if (sending !== null) return ask();
  while ((sending = unsent.find(({ error }) => !error) ?? null) !== null) {
    ask();
    const why = await sent(sending);
    if (why === null) break; // the token is asked for, and `show` follows
    if (why === "") unsent = unsent.filter((each) => each !== sending);
    sending.error = why;
  }
  sending = null;
  ask();
}

/** Send a file, again if streamd was away; returns why that failed, or null. */
async function sent(one) {
  const { id, name, file, wanted } = one;
  let why = null;
  const told = (text) => (why = text);
  const path = `uploads?${new URLSearchParams({ name, key: id, ...wanted })}`;
  while (!(await fetched(path, { method: "POST", body: file }, told))) {
    if (why !== UNREACHED) return why;
    let answer = null;
    while (!answer && why === UNREACHED) {
      await new Promise((resolve) => setTimeout(resolve, ASKS_MS));
      why = null;
      answer = await fetched("uploads", {}, told);
    }
    if (!answer) return why;
    if (++one.tries >= MOST_TRIES) return "cannot be sent: choose it again";
  }
  toast(`${name} is in the queue`);
  return "";
}

$("choose").onclick = () => $("chosen").click();
$("chosen").onchange = () => {
  send([...$("chosen").files]);
  $("chosen").value = "";
};
addEventListener("dragover", (event) => {
  if ($("files").hidden || ![...event.dataTransfer.types].includes("Files")) return;
  event.preventDefault();
  $("files").classList.add("over");
});
addEventListener("dragleave", ({ relatedTarget }) => relatedTarget === null && $("files").classList.remove("over"));
addEventListener("drop", (event) => {
  if ($("files").hidden || ![...event.dataTransfer.types].includes("Files")) return;
  event.preventDefault();
  $("files").classList.remove("over");
  send([...event.dataTransfer.files]);
});
addEventListener("beforeunload", (event) => unsent.length > 0 && event.preventDefault());
