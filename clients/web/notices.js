// Tells the reader when something is heard that somebody waits for: the server's notices, and a word
// that only this browser waits for.

import { store, stored } from "./storage.js";

const $ = (id) => document.getElementById(id);
const FLASH_MS = 1200;
let timer = null;

/** Letters and digits without case and accents, much as the server compares them (streamd/notices.py). */
const letters = (text) => text.normalize("NFKD").toLowerCase().replace(/[^\p{L}\p{N}\p{Mc}]/gu, "");

/** Whether words that follow each other are the phrase: {text} of each. */
export function says(words, phrase) {
  const wanted = letters(phrase);
  if (wanted === "") return false;
  const texts = words.map(({ text }) => letters(text.replace(/['’]s\P{L}*$/u, "")));
  return texts.some((_, from) => {
    let found = "";
    for (let to = from; found.length < wanted.length && to < texts.length; to++) found += texts[to];
    return found === wanted;
  });
}

/** Let the reader choose a word of their own in Settings. */
export function offerNotices() {
  $("await").value = stored("await");
  $("await").onchange = () => store("await", $("await").value.trim());
}

/** Tell of a message, if it has what somebody waits for; `say` shows a line. */
export function tellNotice(message, say) {
  if (message.type === "notice") tell(`Heard: ${message.text}`, say);
  const own = $("await").value.trim();
  const words = message.words ?? [];
  if (message.type === "final" && own && says(words.length > 0 ? words : [{ text: message.text }], own)) tell(`Heard: ${own}`, say);
}

/** Show a line, vibrate, and have the edge of the page flash (style.css). */
function tell(text, say) {
  say(text);
  navigator.vibrate?.([200, 100, 200]);
  document.body.classList.remove("notice");
  void document.body.offsetWidth; // so that a second one begins anew
  document.body.classList.add("notice");
  clearTimeout(timer);
  timer = setTimeout(() => document.body.classList.remove("notice"), FLASH_MS);
}
