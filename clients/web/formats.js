// The transcript as files. Pure: lists of finals in, text out.

const time = (ms, point) => {
  const two = (n) => String(n).padStart(2, "0");
  const s = Math.floor(ms / 1000);
  const rest = String(ms % 1000).padStart(3, "0");
  return `${two(Math.floor(s / 3600))}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}${point}${rest}`;
};

// Escaping ">" also removes "-->", which a cue may not contain.
const escaped = (text) =>
  text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

/** Cut a final into cues of at most 84 characters and 7 s; without words it is one cue. */
export function cues(final) {
  const found = [];
  let cue = null;
  for (const word of final.words) {
    const text = cue === null ? word.text : `${cue.text} ${word.text}`;
    if (cue !== null && text.length <= 84 && word.end_ms - cue.start_ms <= 7000) {
      cue.text = text;
      cue.end_ms = Math.max(cue.end_ms, word.end_ms);
    } else {
      cue = { start_ms: word.start_ms, end_ms: word.end_ms, text: word.text };
      found.push(cue);
    }
  }
  const joined = found.map((c) => c.text).join(" ");
  // If the words do not add up to the text (languages without blanks), it is not cut.
  if (joined !== final.text) return [{ start_ms: final.start_ms, end_ms: final.end_ms, text: final.text }];
  return found;
}

/** All cues, at least one millisecond long and without overlap. */
function timed(finals) {
  let end = 0;
  return finals.flatMap(cues).map((cue) => {
    const start_ms = Math.max(cue.start_ms, end);
    end = Math.max(cue.end_ms, start_ms + 1);
    return { start_ms, end_ms: end, text: cue.text };
  });
}

export const FORMATS = {
  txt: {
    mime: "text/plain",
    text: (finals) => finals.map((final) => `${final.text}\n`).join(""),
  },
  srt: {
    mime: "application/x-subrip",
    text: (finals) =>
      timed(finals)
        .map((c, i) => `${i + 1}\n${time(c.start_ms, ",")} --> ${time(c.end_ms, ",")}\n${c.text}\n\n`)
        .join(""),
  },
  vtt: {
    mime: "text/vtt",
    text: (finals) =>
      "WEBVTT\n\n" +
      timed(finals)
        .map((c) => `${time(c.start_ms, ".")} --> ${time(c.end_ms, ".")}\n${escaped(c.text)}\n\n`)
        .join(""),
  },
  jsonl: {
    mime: "application/jsonl",
    text: (finals) => finals.map((final) => `${JSON.stringify(final)}\n`).join(""),
  },
};
