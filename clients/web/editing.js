// What a reader changes in a session of the library: sentences in place, and who says them. The server
// answers each change with what undoes it, and refuses one if somebody else was faster.

import { $, changed, element, fetched, saved, toast } from "./asking.js";
import { current, draw, fill, nameOf, paragraphs, refill, refresh, session, shown, wordOf, wordsOf } from "./reading.js";

let done = []; // edits that undo what was edited, the newest last
let undone = []; // edits that do it again
let editing = null; // {turn, final, form}

export function forget() {
  done = [];
  undone = [];
  editing = null;
  offer();
}

function offer() {
  $("undo").hidden = done.length === 0;
  $("redo").hidden = undone.length === 0;
}

/** Send edits; returns those that undo them, null if they were not taken. */
async function send(edits) {
  const body = JSON.stringify({ ...edits, revision: session.revision });
  const answer = await fetched(`sessions/${session.id}/edits`, { method: "POST", body });
  if (!answer) return null;
  await refresh();
  if (!answer.isOvertaken) return answer.undo;
  toast("Somebody else has edited this session meanwhile: look at it, then save again");
  return null;
}

async function make(change) {
  const back = await send(change);
  if (back === null) return false;
  done.push(back);
  undone = [];
  offer();
  return true;
}

async function take(from, to) {
  if (editing !== null) return;
  const change = from.pop();
  if (change === undefined) return;
  const back = await send(change);
  if (back === null) from.push(change);
  else to.push(back);
  offer();
}

export const undo = () => take(done, undone);
export const redo = () => take(undone, done);

// -- sentences ----------------------------------------------------------------------------------------

/** Edit the sentence with the marked word, in place. */
export function edit() {
  if (current() === null || editing !== null) return;
  $("sound").pause();
  const { turn } = current();
  const word = wordOf(current());
  const { final } = word;
  const { text } = shown(final);
  fill(turn);
  const form = element("form", "sentence");
  const box = element("textarea", "");
  box.value = text;
  box.rows = 2;
  box.dir = "auto";
  box.maxLength = 10_000;
  box.setAttribute("aria-label", "Sentence");
  const heard = element("p", "heard", final.corrections?.length ? `heard: ${final.text}` : "");
  heard.dir = "auto";
  const keep = element("label", "", " Expect these words in later sessions");
  const box2 = element("input", "");
  box2.type = "checkbox";
  keep.prepend(box2);
  const save = element("button", "main", "Save");
  const cancel = element("button", "", "Cancel");
  cancel.type = "button";
  form.append(box, heard, keep, save, cancel);
  const spans = [...turn.element.querySelectorAll(".said .word")].filter((_, i) => wordsOf(turn)[i].final === final);
  spans[0].before(form);
  for (const span of spans) span.hidden = true;
  editing = { turn, final, form };
  box.focus();
  box.setSelectionRange(word.from, word.to);
  const leave = () => {
    editing = null;
    form.remove();
    refill(turn);
    $("view").focus();
  };
  cancel.onclick = leave;
  form.onkeydown = (event) => {
    event.stopPropagation();
    if (event.key === "Escape") leave();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  };
  form.onsubmit = async (event) => {
    event.preventDefault();
    const meant = box.value.trim().replace(/\s+/g, " ");
    if (meant === text) return leave();
    save.disabled = true;
    const isDone = await make({ sentences: [{ seq: final.seq, text: meant }], keep: box2.checked });
    save.disabled = false;
    if (isDone) return leave();
    keepOpen();
  };
}

/** Leave a sentence open that was not saved, beside what somebody else has made of it. */
function keepOpen() {
  const { final, form } = editing;
  const turn = paragraphs().find(({ parts }) => parts.some((part) => part.final.seq === final.seq));
  if (turn === undefined) return;
  const part = turn.parts.find(({ final: { seq } }) => seq === final.seq);
  form.querySelector(".heard").textContent = `now: ${part.text}`;
  if (!form.isConnected) turn.element.querySelector(".said").before(form);
  form.querySelector("textarea").focus();
}

// -- speakers -----------------------------------------------------------------------------------------

const speakers = () => [...new Set(paragraphs().map(({ speaker }) => speaker))].filter((each) => each !== undefined).sort((a, b) => a - b);

function option(value, text) {
  const made = element("option", "", text);
  made.value = value;
  return made;
}

/** Name a speaker, or say that it is another one. */
export async function name(speaker) {
  $("who").textContent = `Who is ${nameOf(speaker)}?`;
  $("name").value = session.names[speaker] ?? "";
  const others = speakers().filter((each) => each !== speaker);
  $("same").replaceChildren(option("", "nobody else"), ...others.map((each) => option(each, nameOf(each))));
  $("same").closest("label").hidden = others.length === 0;
  if (!(await saved($("naming")))) return;
  const [called, same] = [$("name").value.trim(), Number($("same").value)];
  if (same) await make({ speakers: [{ seq: paragraphs()[0].parts[0].final.seq, was: speaker, speaker: same }] });
  else if (called !== (session.names[speaker] ?? "")) await make({ names: [{ speaker, name: called }] });
}

/** Say that somebody else speaks from the marked word on, to the end of its paragraph. */
export async function split() {
  if (current() === null || editing !== null) return;
  $("sound").pause();
  const { turn, i } = current();
  const [from, to] = [wordsOf(turn)[i], wordsOf(turn).at(-1)];
  $("from").textContent = `Who speaks from “${from.text || from.was}” on?`;
  const next = Math.max(0, ...speakers()) + 1;
  const known = speakers().filter((each) => each !== turn.speaker);
  $("speaker").replaceChildren(...known.map((each) => option(each, nameOf(each))), option(next, `somebody else (${nameOf(next)})`));
  if (!(await saved($("splitting")))) return;
  const speaker = Number($("speaker").value);
  await make({ speakers: [{ seq: from.final.seq, first: from.first, to_seq: to.final.seq, last: to.last, speaker }] });
}

$("edit").onclick = edit;
$("split").onclick = split;
$("undo").onclick = undo;
$("redo").onclick = redo;
$("delete").onclick = async () => {
  const { id, name: called } = session;
  const text = await changed(`Delete this session, its text and its audio? Write its name: ${called}`);
  if (text === null) return;
  if (text !== called) return toast("It was not deleted: the name is another");
  if (await fetched(`sessions/${id}`, { method: "DELETE" })) location.hash = "";
};
$("view").addEventListener("dblclick", ({ target }) => target.closest(".word") && edit());
$("view").addEventListener("click", ({ target }) => {
  const who = target.closest(".who");
  if (who) name(Number(who.dataset.speaker));
});
