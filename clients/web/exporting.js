// Saves the session that is open as a file, with its names or without, by the server.

import { $, saved, toast } from "./asking.js";
import { ask } from "./connection.js";

const KEPT_MS = 10_000; // until the browser has begun to save

async function save(path) {
  let answer;
  try {
    answer = await ask(`v1/library/sessions/${path}`);
  } catch {
    return toast("streamd cannot be reached");
  }
  if (!answer.ok) return toast((await answer.text()).trim());
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  [, link.download] = /filename="([^"]*)"/.exec(answer.headers.get("Content-Disposition"));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), KEPT_MS);
}

/** Ask how to save a session, and do so; without names, what stands for what is a file of its own. */
export async function open(id) {
  if (!(await saved($("exporting")))) return;
  const anonymous = $("without").checked;
  await save(`${id}/transcript?${new URLSearchParams({ format: $("format").value, anonymous })}`);
  if (anonymous) await save(`${id}/replaced`);
}
