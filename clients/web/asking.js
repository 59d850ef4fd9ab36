// What all parts of the library's page use: requests to the server, and what they say to the reader.

import { ask } from "./connection.js";

export const $ = (id) => document.getElementById(id);
const TOAST_MS = 5000;
let shown; // the timer of the toast

export function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

export function toast(text) {
  if ($("toast").hidden || $("toast").textContent !== text) $("toast").textContent = text; // it is read aloud once
  $("toast").hidden = false;
  clearTimeout(shown);
  shown = setTimeout(() => ($("toast").hidden = true), TOAST_MS);
}

export const UNREACHED = "streamd cannot be reached";

/** What the server answers, or null: then `tell` was told why. With `isOvertaken`, somebody else was faster. */
export async function fetched(path, options, tell = toast) {
  let answer;
  try {
    answer = await ask(`v1/library/${path}`, options);
  } catch {
    return void tell(UNREACHED);
  }
  if (answer.status === 401) return void ($("ask").open || $("ask").showModal());
  if (answer.status === 204) return {};
  const isJson = answer.headers.get("Content-Type") === "application/json";
  const body = isJson ? await answer.json() : (await answer.text()).trim();
  const isOvertaken = answer.status === 409 && body.revision !== undefined;
  if (!answer.ok && !isOvertaken) return void tell(body.error ?? body);
  return isOvertaken ? { ...body, isOvertaken } : body;
}

export const day = (date) => date.toLocaleDateString([], { weekday: "long", year: "numeric", month: "long", day: "numeric" });
export const hour = (date) => date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

/** Show a dialog; resolves to whether it was saved. */
export function saved(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => (dialog.onclose = () => resolve(dialog.returnValue === "save")));
}

/** Ask for a text; resolves to it, or to null. */
export async function changed(what, text = "") {
  $("what").textContent = what;
  $("text").value = text;
  const answer = saved($("changing"));
  $("text").select();
  return (await answer) ? $("text").value.trim() : null;
}
