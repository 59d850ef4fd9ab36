// The link with which others listen, as text and as a QR code.

import { ask, isLocal } from "./connection.js";
import { copy } from "./saving.js";

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
  const query = new URLSearchParams({ session });
  if (!isLocal()) query.set("at", location.origin + location.pathname);
  const answer = await ask(`v1/share?${query}`).catch(() => null);
  const { link, code } = answer?.ok ? await answer.json() : {};
  const why = answer?.status === 403 ? (await answer.text()).trim() : "";
  for (const id of ["code", "link", "copy-link"]) $(id).toggleAttribute("hidden", link === undefined);
  $("how").textContent =
    why
      ? `There is no link: ${why}.`
      : link === undefined
      ? "Only this computer can listen. Start streamd with --share to let other devices in the network listen, too."
      : "Scan this or open the link to read along on another device in this network.";
  if (link !== undefined) {
    draw(code);
    $("link").value = link;
  }
  $("copy-link").onclick = async () => {
    if (await copy(link)) return toast("Copied the link");
    $("link").select();
    toast("Selected: copy it with the keyboard or the menu");
  };
  $("invitation").showPopover();
}
