// Captions that roll up: lines are filled from the left and broken once, and a word on the screen
// moves only upwards, with its line.

import { belongs, directionOf, isUnspaced, script } from "./transcript.js";

const GRAPHEMES = new Intl.Segmenter(undefined, { granularity: "grapheme" });
const CLOSING = /^[\p{Pe}\p{Pf}\p{Po}\p{Lm}\p{M}]/u;
const OPENING = /[\p{Ps}\p{Pi}]$/u;
const N_KEPT = 200; // pieces, more than the screen can hold
const LATER_MS = 250;
const HOLD_MS = 150;

/** Cut a text where a line may break, after at most `longest` characters; blanks stay in front. */
export function pieces(text, longest = Infinity) {
  const found = [];
  for (const word of text.match(/\s*\S+/gu) ?? []) {
    let piece = "";
    let n = 0;
    for (const { segment } of GRAPHEMES.segment(word)) {
      const isBreak = (isUnspaced(segment) || isUnspaced(piece)) && !CLOSING.test(segment) && !OPENING.test(piece);
      if (piece.trim() !== "" && !belongs(piece, segment) && (isBreak || n >= longest)) {
        found.push(piece);
        piece = "";
        n = 0;
      }
      piece += segment;
      n += 1;
    }
    found.push(piece);
  }
  return found;
}

const bare = (piece) => piece.toLowerCase().replace(/[\p{P}\s]/gu, "");

/** The beginning of a guess that the one before it had, too, and the `stable` characters at least. */
export function agreed(text, before, stable) {
  const earlier = pieces(before);
  let at = 0;
  for (const [i, piece] of pieces(text).entries()) {
    if (at >= stable && (i >= earlier.length || bare(piece) !== bare(earlier[i]))) break;
    at += piece.length;
  }
  return text.slice(0, at);
}

/** The lines in `box`, an element of fixed width; its children are the lines, newest last. */
export class RollUp {
  #box;
  #nLines;
  #longest;
  #final = []; // pieces that will not change, oldest first
  #own = []; // those of the current segment
  #stable = 0; // characters of them that will not change
  #classAt = () => ""; // of the character at a place of their text
  #shown = []; // [{text, node, line}]
  #timer = null;

  /** `nLines`: lines on the screen at most; `longest`: characters that fit into a line. */
  constructor(box, { nLines, longest }) {
    this.#box = box;
    this.#nLines = nLines;
    this.#longest = longest;
  }

  /**
   * Show this text of the current segment; the characters from `stable` on are tentative. `classAt`
   * names the class of the character at a place.
   */
  show(text, stable = text.length, classAt = () => "") {
    this.#own = pieces(text, this.#longest);
    this.#stable = stable;
    this.#classAt = classAt;
    const between = this.#between();
    if (between) {
      this.#classAt = (at) => classAt(at - 1);
      this.#own[0] = `${between}${this.#own[0]}`;
      this.#stable += 1;
    }
    clearTimeout(this.#timer);
    // A guess that only lost its end is mostly about to get another: without a wait it would flash.
    if (this.#shrinks()) this.#timer = setTimeout(() => this.#render(), HOLD_MS);
    else this.#render();
  }

  /** What stands before the present segment: a new line for another script, or a blank. */
  #between() {
    if (this.#final.length === 0 || this.#own.length === 0 || this.#own[0].startsWith("\n")) return "";
    const before = this.#final.findLast((piece) => script(piece) >= 0) ?? "";
    const scripts = new Set([script(before), script(this.#own.join("")), -1]);
    if (scripts.size > 2) return "\n";
    return isUnspaced(this.#own[0]) ? "" : " ";
  }

  #shrinks() {
    const shown = this.#shown.slice(this.#final.length);
    return this.#own.length < shown.length && this.#own.every((piece, i) => bare(piece) === bare(shown[i].text));
  }

  /** Show this text of the current segment, which is complete: the next one follows it. */
  settle(text, classAt) {
    this.show(text, text.length, classAt);
    this.#render();
    this.#final.push(...this.#own);
    this.#own = [];
    const n = Math.min(this.#final.length, this.#shown.length) - N_KEPT;
    if (n > 0) for (const list of [this.#final, this.#shown]) list.splice(0, n);
  }

  clear() {
    clearTimeout(this.#timer);
    this.#final = [];
    this.#own = [];
    this.#shown = [];
    this.#box.replaceChildren();
  }

  #render() {
    clearTimeout(this.#timer);
    const wanted = this.#final.concat(this.#own);
    const removed = this.#remove(this.#nEqual(wanted));
    while (this.#shown.length < wanted.length && this.#place(wanted[this.#shown.length], removed));
    // A word of the removed text that would come back further left or right: it and those after it
    // come a moment later, as new words.
    if (this.#shown.length < wanted.length) this.#timer = setTimeout(() => this.#render(), LATER_MS);
    let at = 0;
    this.#own.forEach((piece, i) => {
      at += piece.length;
      const node = this.#shown[this.#final.length + i]?.node;
      if (node) node.className = `${this.#classAt(at - 1)}${at > this.#stable ? " tentative" : ""}`;
    });
  }

  /**
   * How many of the pieces shown may stay. A mark or a capital letter is corrected only at the end:
   * elsewhere it would push the words after it aside.
   */
  #nEqual(wanted) {
    const differs = this.#shown.findIndex(({ text }, i) => i >= wanted.length || bare(text) !== bare(wanted[i]));
    const n = differs < 0 ? this.#shown.length : differs;
    return n > 0 && this.#shown[n - 1].text !== wanted[n - 1] ? n - 1 : n;
  }

  /** Remove the pieces shown from number `n` on; returns what was where. */
  #remove(n) {
    const removed = this.#shown.splice(n).filter(({ line }) => line.isConnected);
    const places = removed.map(({ text, node, line }) => ({ word: bare(text), line, x: node.offsetLeft }));
    for (const { node } of removed) node.remove();
    return places;
  }

  /** Append a piece where the text ends; returns whether it can be shown. */
  #place(text, removed) {
    const node = document.createElement("span");
    let line = this.#shown.at(-1)?.line ?? this.#box.firstElementChild;
    // If its line has left the screen, the text goes on in the first that has not.
    if (line === null) line = this.#roll();
    else if (!line.isConnected) line = this.#box.firstElementChild;
    if (text.startsWith("\n") && line.firstChild !== null) line = line.nextElementSibling ?? this.#roll();
    node.textContent = line.firstChild === null ? text.trimStart() : text;
    line.append(node);
    if (line.firstChild !== node && line.offsetWidth > this.#box.clientWidth) {
      line = line.nextElementSibling ?? this.#roll();
      node.textContent = text.trimStart();
      line.append(node);
    }
    const at = removed.findIndex(({ word }) => word === bare(text));
    if (at >= 0 && (removed[at].line !== line || removed[at].x !== node.offsetLeft)) {
      node.remove();
      return false;
    }
    removed.splice(0, at + 1);
    this.#shown.push({ text, node, line });
    return true;
  }

  #roll() {
    const line = document.createElement("p");
    line.dir = directionOf(this.#box.lang);
    this.#box.append(line);
    while (this.#box.childElementCount > this.#nLines) this.#box.firstElementChild.remove();
    return line;
  }
}
