// The link with which others listen, as text and as a QR code.

import { ask } from "./connection.js";

const $ = (id) => document.getElementById(id);
const BORDER = 4; // light modules around a QR code

/** Draw a QR code, given as rows of "0" and "1". */
function draw(rows) {
  const size = rows.length + 2 * BORDER;
  $("code").setAttribute("viewBox", `0 0 ${size} ${size}`);
  const dark = rows.flatMap((row, y) => [...row.matchAll(/1+/g)].map(({ 0: run, index }) => `M${index + BORDER} ${y + BORDER}h${run.length}v1h${-run.length}z`));
  $("code").querySelector("path").setAttribute("d", dark.join(""));
}

/** Show the link to a session of this server. */
export async function showInvitation(session, toast) {
  const answer = await ask(`v1/share?${new URLSearchParams({ session })}`).catch(() => null);
  const { link, code } = answer?.ok ? await answer.json() : {};
  for (const id of ["code", "link", "copy-link"]) $(id).toggleAttribute("hidden", link === undefined);
  $("how").textContent =
    link === undefined
      ? "Only this computer can listen. Start streamd with --share to let other devices in the network listen, too."
      : "Scan this or open the link to read along on another device in this network.";
  if (link !== undefined) {
    draw(code);
    $("link").value = link;
  }
  $("copy-link").onclick = async () => {
    $("link").select();
    // Pages without https have no clipboard.
    await navigator.clipboard?.writeText(link);
    toast(navigator.clipboard ? "Copied the link" : "Selected: copy it with the keyboard or the menu");
  };
  $("invitation").showPopover();
}
