// Captions over a picture, for OBS's browser source: no controls, reconnects by itself.
//
// /overlay?session=live&lines=2&size=48&color=white&bg=transparent&box=%23000a&align=bottom&fade=6
//         &partials=1

import { Listening } from "./connection.js";
import { Transcript } from "./transcript.js";

const options = new URLSearchParams(location.search);
const lines = document.getElementById("lines");
const style = document.documentElement.style;

/** Return a numeric option within limits, or the default if it is not a number. */
function number(name, otherwise, least, most) {
  const value = parseFloat(options.get(name) ?? "");
  return Number.isFinite(value) ? Math.min(most, Math.max(least, value)) : otherwise;
}

/** Apply a colour option, if the browser accepts it as a colour. */
function colour(name, property) {
  const value = options.get(name);
  if (value !== null && CSS.supports("color", value)) style.setProperty(property, value);
}

style.setProperty("--size", `${number("size", 48, 8, 400)}px`);
style.setProperty("--lines", String(Math.round(number("lines", 2, 1, 20))));
colour("color", "--color");
colour("bg", "--bg");
colour("box", "--box");
document.body.dataset.align = options.get("align") ?? "bottom";
const fadeMs = 1000 * number("fade", 6, 0, 3600);
const partials = options.get("partials") !== "0";

let fading = null;
const transcript = new Transcript({ history: false });

function show() {
  const finals = transcript.finals.slice(-3).map((final) => final.text);
  const partial = partials ? transcript.partial : null;
  const text = document.createElement("p");
  text.dir = "auto";
  text.append([...finals, partial?.text.slice(0, partial.stable) ?? ""].join(" "));
  if (partial !== null) {
    const tentative = document.createElement("span");
    tentative.className = "tentative";
    tentative.textContent = partial.text.slice(partial.stable);
    text.append(tentative);
  }
  lines.replaceChildren(text);
  lines.classList.toggle("silent", text.textContent.trim() === "");
  clearTimeout(fading);
  if (fadeMs > 0) fading = setTimeout(() => lines.classList.add("silent"), fadeMs);
}

lines.classList.add("silent");
new Listening(options.get("session") ?? "live", transcript, {
  changed: (kind) => {
    if (transcript.items.length > 50) transcript.items.splice(0, transcript.items.length - 10);
    if (kind === "item" || kind === "partial") show();
  },
  status: () => {},
});
