"""What the page's modules do when the server says no, in Node with a fake websocket and clock."""

import json
import random
import subprocess
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable

from streamd.events import Final, SpeakerTurn, SpeakerTurns, TimedWord, encode
from streamd.labels import revise, revised
from streamd.library.edits import EditedSentence, EditedText, Edits, Speaking

WEB = Path(__file__).parents[2] / "clients" / "web"

WORLD = """
const sockets = [], timers = [];
globalThis.WebSocket = class {
  constructor(url) { this.url = new URL(url); this.sent = []; sockets.push(this); }
  send(data) { this.sent.push(data); }
  close() {}
  hear(message) { this.onmessage({ data: JSON.stringify(message) }); }
};
globalThis.setTimeout = (then, ms) => timers.push({ then, ms });
globalThis.location = { href: "http://localhost/", protocol: "http:", hash: "" };
globalThis.sessionStorage = { getItem: () => null };
const hello = { type: "hello", session: "talk", epoch: "e", seq: 0 };
"""


def node(program: str) -> object:
    path = compute_driver_executable()[0]
    command = [path, "--input-type=module"]
    done = subprocess.run(
        command, input=WORLD + program, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("reason", "least", "most"), [("stop", 7500, 12_500), ("shutdown", 0, 700)]
)
def test_a_session_that_is_over_is_not_asked_for_twice_a_second(reason, least, most):
    waits = node(f"""
    const {{ Listening }} = await import("{WEB / "connection.js"}");
    const {{ Transcript }} = await import("{WEB / "transcript.js"}");
    new Listening("talk", new Transcript(), {{ changed() {{}}, status() {{}} }});
    for (let n = 0; n < 3; n++) {{
      sockets.at(-1).hear(hello);
      sockets.at(-1).hear({{ type: "eos", seq: 0, reason: "{reason}" }});
      sockets.at(-1).onclose();
      timers.at(-1).then();
    }}
    console.log(JSON.stringify(timers.map((timer) => timer.ms)));
    """)
    assert len(waits) == 3
    assert all(least <= ms <= most for ms in waits)


@pytest.mark.parametrize(
    ("heard_ms", "stopped", "again"),
    [(200, True, []), (150, True, [800]), (0, True, [1600, 1600]), (150, False, [800])],
)
def test_a_session_that_did_not_wait_goes_on_only_with_what_it_has_not_heard(
    heard_ms, stopped, again
):
    said = node(f"""
    const {{ Sending }} = await import("{WEB / "microphone.js"}");
    const sending = new Sending({{ named() {{}}, failed() {{}} }}, () => {{}});
    sockets[0].hear(hello);
    sockets[0].hear({{ type: "started", samples: 0 }});
    sending.send(new Int16Array(1600));
    sending.send(new Int16Array(1600));
    sockets[0].onclose();
    if ({json.dumps(stopped)}) sending.stop();
    timers.at(-1).then();
    const fault = {{ type: "error", fatal: true, code: "session_over", heard_ms: {heard_ms} }};
    sockets[1].hear(fault);
    sockets[1].onclose();
    let audio = [];
    if (timers.length === 2) {{
      timers.at(-1).then();
      sockets[2].hear({{ ...hello, session: "new" }});
      sockets[2].hear({{ type: "started", samples: 0 }});
      audio = sockets[2].sent.filter((data) => typeof data !== "string").map((b) => b.length);
    }}
    console.log(JSON.stringify(audio));
    """)
    assert said == again


def test_a_tone_comes_out_as_it_went_in():
    worst, alias = node(f"""
    const {{ Resampler }} = await import("{WEB / "resampler.js"}");
    const resampler = new Resampler(44100, 16000);
    let n = 0, worst = 0, alias = 0;
    const high = new Resampler(44100, 16000);
    for (let at = 0; at < 44100; at += 128) {{
      const tone = (hz) => Float32Array.from({{length: 128}}, (_, i) =>
        Math.sin(2 * Math.PI * hz * (at + i) / 44100));
      for (const x of resampler.push(tone(1000))) {{
        const wanted = Math.sin(2 * Math.PI * 1000 * n / 16000);
        if (n > 100) worst = Math.max(worst, Math.abs(x - wanted));
        n += 1;
      }}
      if (at > 4410) for (const x of high.push(tone(12000))) alias = Math.max(alias, Math.abs(x));
      else high.push(tone(12000));
    }}
    console.log(JSON.stringify([worst, alias]));
    """)
    assert worst < 1e-4
    assert alias < 1e-3


def test_the_text_names_speakers_and_is_harmless_and_the_lines_are_what_was_sent():
    text, lines = node(f"""
    const {{ asLines, asText }} = await import("{WEB / "saving.js"}");
    const word = (text, speaker, i) => ({{ text, start_ms: i, end_ms: i + 1, speaker }});
    const words = [word("Anna", 1, 0), word("Bottin?", 1, 1), word("Yes.", 2, 2)];
    const corrections = [{{ first: 0, last: 1, text: "Ana\\tBotín" }}];
    const said = {{ type: "final", run: "e" }};
    const both = {{ ...said, seq: 1, text: "Anna Bottin? Yes.", words, corrections }};
    const evil = " \\u202eevil\\x1b[2J<b>\\ud800\\n-->";
    const sound = {{ type: "sound", label: "music", start_ms: 3, end_ms: 4, run: "e" }};
    const other = {{ ...said, seq: 2, text: evil, words: [] }};
    const items = [both, {{ type: "divider" }}, sound, other];
    console.log(JSON.stringify([asText(items), asLines(items)]));
    """)
    assert text.splitlines() == [
        "Speaker 1: Ana Botín?",
        "Speaker 2: Yes.",
        "[music]",
        "\ufffdevil\ufffd[2J<b>\ufffd -->",
    ]
    sent = [json.loads(each) for each in lines.splitlines()]
    assert [each.get("text", "")[:6] for each in sent] == ["Anna B", "", " \u202eevil"]
    assert sent[1] == {"type": "sound", "label": "music", "start_ms": 3, "end_ms": 4}
    assert "run" not in sent[0]


def test_a_correction_is_sent_with_the_audio_and_a_refusal_is_told():
    sent, told = node(f"""
    const {{ Sending }} = await import("{WEB / "microphone.js"}");
    const told = [];
    const sending = new Sending({{ named() {{}}, failed: (why) => told.push(why) }}, () => {{}});
    const message = {{ type: "correct", text: "Ana Botín" }};
    sockets[0].hear(hello);
    sending.say(message); // the server is not ready for it
    sockets[0].hear({{ type: "started", samples: 0 }});
    sending.say(message);
    sockets[0].hear({{ type: "error", code: "bad_option", message: "too many", fatal: false }});
    console.log(JSON.stringify([sockets[0].sent.slice(1), told]));
    """)
    assert [json.loads(each) for each in sent] == [{"type": "correct", "text": "Ana Botín"}]
    assert told == ["There is no connection to the server: try again soon.", "too many"]


def test_words_that_are_chosen_before_the_server_is_ready_are_sent_then():
    sent = node(f"""
    const {{ Sending }} = await import("{WEB / "microphone.js"}");
    const callbacks = {{ named() {{}} }};
    const sending = new Sending(callbacks, () => {{}}, {{ choices: {{ language: "en" }} }});
    sockets[0].hear(hello);
    sending.update({{ hotwords: "Ana Botín" }});
    sockets[0].hear({{ type: "started", samples: 0 }});
    console.log(JSON.stringify(sockets[0].sent));
    """)
    start, *more = [json.loads(each) for each in sent]
    assert "hotwords" not in start
    assert more == [{"type": "update", "hotwords": "Ana Botín"}]


def test_a_correction_stands_for_words_of_this_run_only():
    found = node(f"""
    const {{ corrected, Transcript }} = await import("{WEB / "transcript.js"}");
    const word = (text, i) => ({{ text, start_ms: i, end_ms: i + 1 }});
    const words = (text) => text.split(" ").map(word);
    const timed = {{ start_ms: 0, end_ms: 9 }};
    const final = (seq, text) => ({{ type: "final", seq, ...timed, text, words: words(text) }});
    const transcript = new Transcript();
    const hear = (...messages) => messages.map((each) => transcript.apply(each));
    hear({{ ...hello, started: 0 }}, final(1, "Anna Bottin."));
    hear({{ ...hello, epoch: "f", started: 9 }});
    const before = transcript.find("anna bottin");
    const known = transcript.place(before); // the server does not know the run before
    hear(final(1, "“Anna Bottin,” said Anna."));
    const places = ["anna  BOTTIN", "Anna", "An", "—"].map((heard) => transcript.find(heard));
    const place = transcript.place(places[0]);
    const one = {{ type: "correction", text: "Ana", seq: 1, first: 0, last: 0 }};
    const both = {{ ...one, text: "Ana Botín", last: 1 }};
    const kinds = hear(one, both, {{ ...one, last: 9 }}, {{ ...one, seq: 2 }});
    const texts = transcript.finals.map((each) => corrected(each).text);
    const {{ text }} = transcript.items.at(-1);
    console.log(JSON.stringify([before, known, places, place, kinds, texts, text]));
    """)
    assert found == [
        {"item": 0, "first": 0, "last": 1},
        {},
        [{"item": 2, "first": 0, "last": 1}, {"item": 2, "first": 0, "last": 0}, {}, {}],
        {"seq": 1, "first": 0, "last": 1},
        ["revised", "revised", "nothing", "nothing"],
        ["Anna Bottin.", "“Ana Botín,” said Anna."],
        "“Anna Bottin,” said Anna.",
    ]


def test_the_page_says_as_the_daemon_who_says_a_word():
    draw = random.Random(7)
    cases = []
    for _ in range(300):
        texts = [draw.choice(["a", "b", "c.", "d?”"]) for _ in range(8)]
        ends = sorted(draw.sample(range(1, 60), 8))
        words = tuple(
            TimedWord(text=text, start_ms=20 * start, end_ms=20 * end, final=True, speaker=9)
            for text, start, end in zip(texts, [0, *ends], ends, strict=False)
        )
        said = " ".join(texts)
        final = Final(seg=1, start_ms=0, end_ms=1200, text=said, language="en", words=words, seq=1)
        turns = []
        for _ in range(draw.randint(0, 4)):
            start = draw.randint(0, 50)
            end = start + draw.randint(1, 30)
            turns.append(
                SpeakerTurn(start_ms=20 * start, end_ms=20 * end, speaker=draw.randint(1, 3))
            )
        since = 20 * draw.choice([0, 0, 25])
        told = SpeakerTurns(start_ms=since, end_ms=1600, turns=tuple(turns))
        cases.append((final, told))
    heard = [[json.loads(encode(each)) for each in case] for case in cases]
    found = node(f"""
    const {{ Transcript }} = await import("{WEB / "transcript.js"}");
    const speakers = {json.dumps(heard)}.map((events) => {{
      const transcript = new Transcript();
      for (const event of [hello, ...events]) transcript.apply(event);
      return transcript.items.at(-1).words.map(({{ speaker }}) => speaker);
    }});
    console.log(JSON.stringify(speakers));
    """)
    for (final, told), speakers in zip(cases, found, strict=True):
        finals = [final]
        revise(finals, revised([], told), told)
        assert [word.speaker for word in finals[0].words] == speakers


def test_sounds_stand_where_they_began_however_late_they_are_told():
    shown = node(f"""
    const {{ Transcript }} = await import("{WEB / "transcript.js"}");
    const final = (seq, start_ms) => (
      {{ type: "final", seq, seg: seq, start_ms, end_ms: start_ms + 900, text: "t", words: [] }}
    );
    const sound = (end_ms) => ({{ type: "sound", label: "music", start_ms: 5000, end_ms }});
    const seen = ({{ items }}) => items.map((each) => each.seq ?? each.end_ms);
    const transcript = new Transcript();
    const hear = (...messages) => messages.map((each) => transcript.apply(each));
    const live = [hello, final(1, 0), sound(5500), final(2, 4000), sound(9000), final(3, 8000)];
    const kinds = hear(...live);
    const later = new Transcript();
    const replay = [hello, final(1, 0), final(2, 4000), final(3, 8000), sound(5500), sound(9000)];
    for (const each of [...replay, ...replay]) later.apply(each);
    console.log(JSON.stringify([kinds, seen(transcript), transcript.revised, seen(later)]));
    """)
    kinds = ["state", "item", "item", "revised", "state", "item"]
    assert shown == [kinds, [1, 2, 9000, 3], 1, [1, 2, 9000, 3]]


def test_a_reader_waits_for_a_phrase_of_their_own():
    found = node(f"""
    globalThis.document = {{ getElementById: () => null }};
    const {{ says }} = await import("{WEB / "notices.js"}");
    const said = "Did Zoë’s friend, Ana Botín, call?";
    const words = said.split(" ").map((text) => ({{ text }}));
    const phrases = ["zoe", "ANA BOTIN", "call", "ana", "an", "friend Botín", "", "?"];
    console.log(JSON.stringify(phrases.filter((each) => says(words, each))));
    """)
    assert found == ["zoe", "ANA BOTIN", "call", "ana"]


@pytest.fixture(scope="module")
def edited():
    """Sessions that somebody has edited at random: [(events, final as it stands)]."""
    draw = random.Random(62)
    texts = [
        "It was the best, of times (he said).",
        "¿Qué? “No,” dijo Ana.",
        "好 的 1 ,000 b",
        "a b a b a b",
    ]
    found = []
    for text in texts * 15:
        words = tuple(
            TimedWord(
                text=word,
                start_ms=300 * n,
                end_ms=300 * n + 200,
                prob=0.9,
                final=True,
                speaker=1 + n % 2,
            )
            for n, word in enumerate(text.split())
        )
        final = Final(seq=1, seg=1, start_ms=0, end_ms=9000, text=text, language="", words=words)
        session, events, now = EditedText([final]), [final], final
        for _ in range(4):
            meant = now.text.split()
            for _ in range(draw.randrange(3)):
                at = draw.randrange(len(meant) + 1)
                meant[at : at + draw.randrange(3)] = draw.choices(
                    ["new", "b,", "(x"], k=draw.randrange(3)
                )
            first = draw.randrange(len(words))
            last = draw.randrange(first, len(words))
            who = Speaking(
                speaker=draw.randrange(4),
                seq=1,
                first=first,
                to_seq=1,
                last=last,
                was=draw.randrange(3),
            )
            sentence = EditedSentence(seq=1, text=" ".join(meant))
            events += session.edit(Edits(revision=0, sentences=(sentence,), speakers=(who,)))[0]
            now = session.edits.said(final)
        found.append((events, now))
    return found


def test_the_page_makes_the_same_of_edits_as_the_files(edited):
    events = [[json.loads(encode(event)) for event in each] for each, _ in edited]
    shown = node(f"""
    const {{ Transcript, corrected }} = await import("{WEB / "transcript.js"}");
    const shown = {json.dumps(events)}.map((events) => {{
      const transcript = new Transcript();
      transcript.apply(hello);
      for (const event of events) transcript.apply(event);
      return corrected(transcript.finals[0]);
    }});
    console.log(JSON.stringify(shown));
    """)
    for page, (_, now) in zip(shown, edited, strict=True):
        assert page["text"] == now.text
        shown_words = [word for each in page["words"] for word in each["text"].split()]
        assert shown_words == [word.text for word in now.words]
        times = {word.start_ms: word.speaker or None for word in now.words}
        same = [word for word in page["words"] if "was" not in word]
        assert [times[word["start_ms"]] for word in same] == [word.get("speaker") for word in same]


def test_attributions_that_come_again_after_a_lost_connection_change_nothing():
    said = node(f"""
    const {{ Transcript }} = await import("{WEB / "transcript.js"}");
    const word = (speaker, n) => ({{ text: "a", start_ms: n, end_ms: n + 1, speaker }});
    const words = [1, 3].map(word);
    const final = {{ type: "final", seq: 1, text: "a a", words, start_ms: 0, end_ms: 2 }};
    const notes = [[1, 2], [3, 1]].map(([was, speaker]) =>
      ({{ type: "attribution", seq: 1, first: 0, to_seq: 0, last: 0, was, speaker }}));
    let transcript = new Transcript();
    const heard = [];
    for (let n = 0; n < 3; n++) {{
      for (const event of [hello, final, ...notes]) transcript.apply(event);
      heard.push(transcript.finals[0].words.map(({{ speaker }}) => speaker));
      transcript = new Transcript({{ saved: {{ ...transcript.state, items: transcript.items }} }});
    }}
    const late = {{ ...notes[0], was: 2, speaker: 5 }};
    for (const event of [hello, ...notes, late]) transcript.apply(event);
    heard.push(transcript.finals[0].words.map(({{ speaker }}) => speaker));
    console.log(JSON.stringify(heard));
    """)
    assert said == [[2, 1]] * 3 + [[5, 1]]
