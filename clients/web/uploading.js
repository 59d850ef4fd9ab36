// Files that are sent to the library and transcribed there, one after the other.

import { $, element, fetched, toast } from "./asking.js";
import { clock } from "./transcript.js";

const ASKS_MS = 2000;
let waiting = []; // files that are not sent yet
let sending = null; // the name of the one that is
let asking = null; // the timer
let isShown = false;
let seen = new Set(); // of jobs
let told = () => {}; // called when one is done

/** Show the files; `done` is called when one is transcribed. */
export function show(done) {
  told = done;
  isShown = true;
  ask();
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
  $("files").hidden = !isShown || !answer?.uploads;
  if ($("files").hidden) return;
  const { uploads } = answer;
  const now = new Set(uploads.map(({ id }) => id));
  if ([...seen].some((id) => !now.has(id))) told();
  seen = now;
  draw(uploads);
  if (uploads.some(({ state }) => state !== "failed") || sending !== null) asking = setTimeout(ask, ASKS_MS);
}

/** Show the files that there are now; rows that stay are left alone, so that a press is not lost. */
function draw(uploads) {
  const rows = uploads.map((job) => {
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
    row.append(button("Remove", job, "DELETE"));
    return row;
  });
  const unsent = [...(sending === null ? [] : [sending]), ...waiting.map(({ name }) => name)].map((name, n) => {
    const row = element("li", "");
    row.append(element("strong", "", name), " ", element("span", "", n === 0 && sending !== null ? "is being sent" : "is not sent yet"));
    return row;
  });
  $("queue").replaceChildren(...rows, ...unsent);
}

function about({ state, error, reached_ms, duration_ms }) {
  if (state === "waiting") return "waits";
  if (state === "failed") return error;
  return duration_ms > 0 ? `${clock(reached_ms)} of ${clock(duration_ms)}` : "is being read";
}

function button(text, { id, name }, method) {
  const made = element("button", "", text);
  made.setAttribute("aria-label", `${text}: ${name}`);
  made.onclick = async () => {
    if (await fetched(`uploads/${id}`, { method })) ask();
  };
  return made;
}

/** Send files, one after the other, with what is chosen now. */
export async function send(files) {
  const wanted = { language: $("spoken").value.trim(), hotwords: $("expected").value.trim(), speakers: $("apart").checked };
  waiting.push(...files.map((file) => ({ name: file.name, file, wanted })));
  if (sending !== null) return ask();
  while (waiting.length > 0) {
    const { name, file, wanted: how } = waiting.shift();
    sending = name;
    ask();
    const sent = await fetched(`uploads?${new URLSearchParams({ name, ...how })}`, { method: "POST", body: file });
    if (sent) toast(`${name} is in the queue`);
  }
  sending = null;
  ask();
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
addEventListener("beforeunload", (event) => sending !== null && event.preventDefault());
