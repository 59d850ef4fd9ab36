// Sounds that are not speech, in their places among what is said.

/** The place of an item that begins at `startMs`: behind all that began before, from item `first` on. */
export function placeOf(items, startMs, first, passes = () => true) {
  let at = items.length;
  while (at > first && items[at - 1].start_ms > startMs && passes(items[at - 1])) at--;
  return at;
}

export const isSound = ({ type }) => type === "sound";

/** Which item is an earlier message about the same sound; -1: none. */
export function sameSound(items, { label, start_ms }, first) {
  return items.findLastIndex((item, n) => n >= first && isSound(item) && item.label === label && item.start_ms === start_ms);
}

/** A line with a sound, in brackets as subtitles have it. */
export function soundNote({ label }) {
  const made = document.createElement("p");
  made.className = "sound";
  made.textContent = `[${label}]`;
  return made;
}
