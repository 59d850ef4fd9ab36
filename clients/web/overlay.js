// Captions over a picture, for OBS's browser source: no controls, reconnects by itself.
//
// /overlay?session=live&lines=2&size=48&width=24em&font=Roboto&outline=3&align=top-center
//         &color=white&bg=transparent&box=%23000a&fade=6&partials=1

import { Listening } from "./connection.js";
import { RollUp } from "./rollup.js";
import { Transcript } from "./transcript.js";

const options = new URLSearchParams(location.search);
const lines = document.getElementById("lines");
const style = document.documentElement.style;

/** Return a numeric option within limits, or the default if it is not a number. */
function number(name, otherwise, least, most) {
  const value = parseFloat(options.get(name) ?? "");
  return Number.isFinite(value) ? Math.min(most, Math.max(least, value)) : otherwise;
}

/** Apply an option to a variable of the style sheet, if the browser accepts it for `property`. */
function css(name, property, value = options.get(name)) {
  if (value !== null && CSS.supports(property, value)) style.setProperty(`--${name}`, value);
}

const size = number("size", 48, 8, 400);
style.setProperty("--size", `${size}px`);
css("color", "color");
css("bg", "color");
css("box", "color");
css("font", "font-family");
const width = options.get("width");
css("width", "width", /^\d+$/.test(width) ? `${width}px` : width);
const outline = number("outline", 0, 0, 40);
style.setProperty("--outline", `${outline}px`);
if (outline > 0) document.body.dataset.outline = "";
document.body.dataset.align = (options.get("align") ?? "").replaceAll("-", " ");
const fadeMs = 1000 * number("fade", 6, 0, 3600);
const partials = options.get("partials") !== "0";

let fading = null;
const transcript = new Transcript({ history: false });
const rollUp = new RollUp(lines, {
  nLines: Math.round(number("lines", 2, 1, 20)),
  longest: Math.max(1, Math.floor(lines.clientWidth / size)),
});

function show(item) {
  // What has faded does not come back.
  if (lines.classList.contains("silent")) rollUp.clear();
  if (item?.type === "final") rollUp.settle(item.text);
  const partial = partials ? transcript.partial : null;
  rollUp.show(partial?.text ?? "", partial?.stable);
  lines.classList.toggle("silent", lines.textContent === "");
  clearTimeout(fading);
  if (fadeMs > 0) fading = setTimeout(() => lines.classList.add("silent"), fadeMs);
}

lines.classList.add("silent");
addEventListener("resize", () => rollUp.clear());
new Listening(options.get("session") ?? "live", transcript, {
  changed: (kind) => {
    if (kind === "item") show(transcript.items.at(-1));
    if (kind === "partial") show();
    if (transcript.items.length > 50) transcript.items.splice(0, transcript.items.length - 10);
  },
  status: () => {},
});
