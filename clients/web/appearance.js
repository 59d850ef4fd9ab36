// How the page looks: settings that the browser keeps, full screen, a screen that stays on.

import { store, stored } from "./storage.js";

const root = document.documentElement;
const $ = (id) => document.getElementById(id);
const IDLE_MS = 3000;
const SIZES_REM = [1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6.5, 8];

const prefers = (feature) => matchMedia(`(${feature})`).matches;

const settings = {
  theme: stored("theme", prefers("prefers-color-scheme: light") ? "light" : "dark"),
  contrast: stored("contrast", prefers("prefers-contrast: more") ? "on" : "off"),
  confidence: stored("confidence", "off"),
  times: stored("times", "on"),
  size: stored("size"),
};

/** Let the buttons change the appearance; `changed` is called after each change. */
export function appearance(changed) {
  function apply() {
    for (const name of ["theme", "contrast", "confidence", "times"]) {
      root.dataset[name] = settings[name];
      if (name !== "theme") $(name).ariaPressed = String(settings[name] === "on");
    }
    if (settings.size) root.style.setProperty("--size", `${settings.size}rem`);
    $("theme").textContent = settings.theme === "dark" ? "Light theme" : "Dark theme";
    changed();
  }

  function set(name, value) {
    settings[name] = value;
    store(name, value);
    apply();
  }

  function resize(by) {
    const now = parseFloat(getComputedStyle(root).getPropertyValue("--size"));
    const at = SIZES_REM.findIndex((size) => size >= now);
    set("size", String(SIZES_REM[Math.min(SIZES_REM.length - 1, Math.max(0, at + by))]));
  }

  $("smaller").onclick = () => resize(-1);
  $("larger").onclick = () => resize(1);
  $("theme").onclick = () => set("theme", settings.theme === "dark" ? "light" : "dark");
  for (const name of ["contrast", "confidence", "times"]) {
    $(name).onclick = () => set(name, settings[name] === "on" ? "off" : "on");
  }
  $("full").hidden = !document.fullscreenEnabled; // an iPhone has no full screen for pages
  $("full").onclick = () => (document.fullscreenElement ? document.exitFullscreen() : root.requestFullscreen());
  document.onfullscreenchange = () => ($("full").ariaPressed = String(document.fullscreenElement !== null));
  // In full screen only the text stays while nobody touches anything.
  let timer = null;
  function idle(on) {
    clearTimeout(timer);
    if (!on && document.fullscreenElement) timer = setTimeout(() => idle(true), IDLE_MS);
    if (root.classList.contains("idle") === on) return;
    root.classList.toggle("idle", on);
    changed();
  }
  // When the bars go, Chrome reports a pointer that moves by nothing.
  const isReal = ({ type, movementX, movementY }) => type !== "pointermove" || movementX || movementY;
  for (const kind of ["pointermove", "pointerdown", "keydown", "fullscreenchange"]) {
    document.addEventListener(kind, (event) => isReal(event) && idle(false));
  }
  apply();
}

let lock = null;
let isAwake = false;
let video = null;

/**
 * Play a black picture, or no longer: it keeps the screen on where pages have no wake lock, for want of https.
 *
 * Chrome and Firefox take a stream for that, however small, as long as it is on the screen. Safari wants sound.
 */
function play(on) {
  if (on === (video !== null)) return;
  video?.remove();
  video = null;
  if (!on) return;
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d");
  video = document.createElement("video");
  Object.assign(video, { className: "awake", muted: true, playsInline: true, ariaHidden: "true", srcObject: canvas.captureStream() });
  document.body.append(video);
  video.play().catch(() => {}); // captions go on without it
  context.fillRect(0, 0, 1, 1); // the stream has a picture from now on
}

/** Keep the screen on, or no longer: a phone that goes dark ends its captions. */
export async function keepAwake(on = isAwake) {
  isAwake = on;
  if (!navigator.wakeLock) play(on);
  if (!on) {
    lock?.release();
    lock = null;
  } else if (document.visibilityState === "visible" && (lock === null || lock.released)) {
    // Only secure pages may, and not while the battery is low; captions go on without it.
    lock = (await navigator.wakeLock?.request("screen").catch(() => null)) ?? null;
  }
}
document.addEventListener("visibilitychange", () => keepAwake());
