"""The overlay in a real browser: lines are broken once, and no word moves but upwards."""

import json
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.async_api import expect

from streamd.cli.bench import spoken
from streamd.events import Partial
from tests.support.browser import final, needs_chromium, visit
from tests.support.serving import CountingStreams, serving

pytestmark = [pytest.mark.page, needs_chromium, pytest.mark.asyncio(loop_scope="module")]
EVENTS = Path(__file__).with_name("recorded_events.jsonl")
"""Partials and finals of `tests/speech/recording.flac`, as tiny.en wrote them on a busy machine."""

REPLAY = """
class Socket {
  constructor() { window.socket = this; }
  close() {}
}
window.WebSocket = Socket;
const timers = new Map();
window.setTimeout = (then) => timers.set(timers.size + 1, then).size;
window.clearTimeout = (timer) => timers.set(timer, () => {});
window.later = () => {
  for (const [timer, then] of timers) {
    timers.set(timer, () => {});
    then();
  }
};
window.hear = (message) => socket.onmessage({ data: JSON.stringify(message) });
// The words on the screen and where they are.
window.seen = () => {
  const found = [];
  const walker = document.createTreeWalker(document.getElementById("lines"), NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    for (const { 0: word, index } of node.data.matchAll(/\\S+/g)) {
      const range = document.createRange();
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      const { x, y } = range.getBoundingClientRect();
      found.push([word, Math.round(x), Math.round(y)]);
    }
  }
  return found;
};
window.replay = (events) => {
  hear({ type: "hello", session: "live", epoch: "e", seq: 0 });
  const screens = [];
  for (const event of events) {
    hear(event);
    screens.push(seen());
    later();
    screens.push(seen());
  }
  return screens;
};
"""


async def replayed(context, query: str, events: list[dict]) -> tuple:
    """The page and what it showed after each event: (word, x, y) of each word."""
    async with serving(CountingStreams()) as server:
        await context.add_init_script(REPLAY)
        page, wrong = await visit(context, f"http://127.0.0.1:{server.port}/overlay?{query}")
        screens = await page.evaluate("(events) => replay(events)", events)
        assert wrong == []
    return page, screens


def moved(before: list, after: list) -> list:
    """The words that are on both screens, but not in the same column, or further down."""
    a, b = ([word.lower().strip(".,") for word, *_ in each] for each in (before, after))
    same = SequenceMatcher(None, a, b, autojunk=False)
    pairs = [
        (before[block.a + i], after[block.b + i])
        for block in same.get_matching_blocks()
        for i in range(block.size)
    ]
    return [pair for pair in pairs if pair[0][1] != pair[1][1] or pair[0][2] < pair[1][2]]


@pytest.mark.parametrize("query", ["fade=0", "fade=0&lines=3&width=500&size=30&align=top"])
async def test_in_a_minute_of_speech_no_word_moves_aside(context, query):
    events = [json.loads(line) for line in EVENTS.read_text().splitlines()]
    _, screens = await replayed(context, query, events)
    assert [pair for each in pairwise(screens) for pair in moved(*each)] == []
    n_lines = 3 if "lines=3" in query else 2
    assert {len({y for *_, y in screen}) for screen in screens} == set(range(1, n_lines + 1))
    # Only marks and capitals may be out of date.
    shown = spoken(" ".join(word for word, *_ in screens[-1]))
    said = spoken(" ".join(event["text"] for event in events if event["type"] == "final"))
    assert shown == said[-len(shown) :]


def spoken_as(text: str, *, stable: int = 0, seg: int = 1) -> dict:
    return {"type": "partial", "seg": seg, "text": text, "stable": stable}


async def test_what_is_corrected_in_the_middle_pushes_nothing_aside(context):
    _, screens = await replayed(
        context,
        "fade=0",
        [
            spoken_as("a light. It was"),
            spoken_as("a light, it was a season"),
            spoken_as("a lamplight, it was a season of"),
            spoken_as("a lamplight, it was a season of darkness", stable=5),
        ],
    )
    shown = [" ".join(word for word, *_ in screen) for screen in screens]
    assert shown[2] == "a light. It was a season"  # a comma is not worth a jump
    assert shown[4] == "a lamplight,"  # "it was a season" would have jumped
    assert shown[5] == "a lamplight, it was a season of"  # a moment later
    assert shown[-1] == "a lamplight, it was a season of darkness"
    assert [pair for each in pairwise(screens) for pair in moved(*each)] == []


@pytest.mark.parametrize(
    "text",
    [
        "今日はとても良い天気なので、散歩に行きましょう。「はい、行きましょう」と彼女は答えました。",
        "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichenverordnung",
        "السلام عليكم ورحمة الله وبركاته كيف حالك اليوم يا صديقي العزيز",
    ],
)
async def test_every_script_is_broken_into_lines_that_fit(context, text):
    growing = [spoken_as(text[:n]) for n in range(1, len(text) + 1)]
    page, screens = await replayed(context, "fade=0&width=500&lines=9", growing)
    assert "".join(word for word, *_ in screens[-1]) == text.replace(" ", "")
    box = page.locator("#lines")
    rows = await box.evaluate(
        "(box) => [...box.children].map((p) => [p.textContent, p.offsetWidth])"
    )
    assert len(rows) > 1
    assert all(width <= 500 for _, width in rows)
    assert not any(row[0] in "、。」" or row[-1] in "「" for row, _ in rows)


async def test_what_has_faded_does_not_come_back(context):
    page, (*_, screen) = await replayed(context, "fade=1", [spoken_as("long ago")])
    assert [word for word, *_ in screen] == ["long", "ago"]  # invisible now: time passes at once
    screens = await page.evaluate("(events) => replay(events)", [spoken_as("news", seg=2)])
    assert [word for word, *_ in screens[-1]] == ["news"]


async def test_the_overlay_shows_what_is_asked_for(context, streams):
    streams.live.publish(final("before it came"))
    async with serving(streams) as server:
        query = "size=64&color=rgb(1,2,3)&font=Courier&outline=3&width=80vw&fade=0"
        page, wrong = await visit(context, f"http://127.0.0.1:{server.port}/overlay?{query}")
        shown = page.locator("#lines")
        await expect(shown).to_have_text("")
        partial = Partial(seg=0, rev=0, start_ms=0, end_ms=9, text="turn on", stable=4)
        # It may not be listening yet; a newer partial comes to whoever is late.
        streams.live.publish(partial)
        await expect(shown).to_have_text("turn on")
        streams.live.publish(final("turn on"))
        streams.live.publish(final("the lamp"))
        await expect(shown).to_have_text("turn on the lamp")
        style = await page.evaluate(
            "(({fontSize, color, backgroundColor, fontFamily}) =>"
            "[fontSize, color, backgroundColor, fontFamily])"
            "(getComputedStyle(document.body))"
        )
        assert style[:3] == ["64px", "rgb(1, 2, 3)", "rgba(0, 0, 0, 0)"]
        assert style[3].startswith("Courier, ")
        shadow, width = await shown.evaluate(
            "(lines) => [getComputedStyle(lines).textShadow, lines.clientWidth]"
        )
        assert shadow.count("3px") == 4
        assert width == 1024
        assert wrong == []


async def test_wrong_values_in_the_address_are_told_until_somebody_speaks(context, streams):
    async with serving(streams) as server:
        query = "lines=99&align=foo-left&size=abc&bg=nonsense;}&lnes=3&fade=0"
        page, wrong = await visit(context, f"http://127.0.0.1:{server.port}/overlay?{query}")
        shown = page.locator("#lines")
        await expect(shown).to_contain_text("abc")  # the end of it: there are two lines
        (told,) = wrong
        assert told == (
            "overlay: lnes is no option; size must be from 8 to 400, got abc; "
            "bg is not CSS: nonsense;}; align has no foo; lines must be from 1 to 20, got 99"
        )
        streams.live.publish(final("turn on"))
        await expect(shown).to_have_text("turn on")


async def test_no_more_lines_are_shown_than_fit(context):
    words = " ".join(f"word{n}" for n in range(200))
    page, _ = await replayed(context, "fade=0&lines=20&size=100", [spoken_as(words)])
    first = await page.locator("#lines p").first.bounding_box()
    assert first["y"] >= 0


async def test_a_guess_that_loses_its_end_does_not_flash(context):
    page, _ = await replayed(context, "fade=0", [spoken_as("nothing going on, you know")])
    texts = await page.evaluate(
        """(guesses) => guesses.map((text) => {
             hear({ type: "partial", seg: 1, text, stable: 0 });
             return document.getElementById("lines").textContent;
           })""",
        ["nothing going on,", "nothing going on, we're just"],
    )
    assert texts == ["nothing going on, you know", "nothing going on, we're just"]
    await page.evaluate("hear({ type: 'partial', seg: 1, text: 'nothing going', stable: 0 })")
    await page.evaluate("later()")  # no other guess came
    assert await page.locator("#lines").text_content() == "nothing going"


async def test_calm_captions_show_what_was_guessed_twice(context):
    guesses = ["turn", "turn of", "turn on the", "turn on the lamb"]
    events = [spoken_as(text) for text in guesses]
    events += [spoken_as("turn on the lamp and", stable=16)]
    _, screens = await replayed(context, "fade=0&calm=1", events)
    shown = [" ".join(word for word, *_ in screen) for screen in screens[1::2]]
    assert shown == ["", "turn", "turn", "turn on the", "turn on the lamp"]


async def test_another_script_begins_a_line_of_its_own(context):
    hello = "السلام عليكم"
    events = [
        {"type": "final", "seq": n, "seg": n, "text": text, "start_ms": n, "end_ms": n + 1}
        for n, text in enumerate(["Hello.", hello, "And 95%."], 1)
    ]
    page, _ = await replayed(context, "fade=0&lines=9", events)
    assert await page.locator("#lines p").all_text_contents() == ["Hello.", hello, "And 95%."]


def conversation() -> list[dict]:
    """A question, an answer that begins in the same final, and a guess of what a third one says."""

    def said(n: int, **speakers: int) -> dict:
        words = [
            {"text": text.replace("_", "."), "start_ms": n, "end_ms": n + 1, "speaker": speaker}
            for text, speaker in speakers.items()
        ]
        text = " ".join(word["text"] for word in words)
        return {"seg": n, "text": text, "words": words, "start_ms": n, "end_ms": n + 1}

    return [
        {"type": "final", "seq": 1, **said(1, Who=1, comes_=1, Anna_=2)},
        {"type": "final", "seq": 2, **said(2, And=2, Bob_=2)},
        {"type": "partial", "rev": 1, "stable": 2, **said(3, No=3, he=3, does=2)},
    ]


async def test_who_speaks_is_told_by_a_dash_or_a_colour(context):
    lines, last = "#lines p", "#lines p:nth-child(3)"
    page, _ = await replayed(context, "fade=0&lines=9", conversation())
    shown = await page.locator(lines).all_text_contents()
    assert shown == ["Who comes.", "– Anna. And Bob.", "– No he", "– does"]
    assert await page.locator(".tentative").all_text_contents() == [" he", "–", " does"]
    page, _ = await replayed(context, "fade=0&lines=9&speakers=color", conversation())
    shown = await page.locator(lines).all_text_contents()
    assert shown == ["Who comes.", "Anna. And Bob.", "No he", "does"]
    colours = "(p) => [...p.children].map((word) => word.className)"
    assert await page.locator(last).evaluate(colours) == ["who3", "who3 tentative"]
    page, _ = await replayed(context, "fade=0&lines=1&width=99em&speakers=off", conversation())
    assert await page.locator(lines).all_text_contents() == ["Who comes. Anna. And Bob. No he does"]


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", ["Zoë: Who comes.", "– Anna. And Bob.", "<b>: No he", "– does"]),
        ("&speakers=color", ["Zoë: Who comes.", "Anna. And Bob.", "<b>: No he", "does"]),
        ("&speakers=off&width=99em&lines=1", ["Who comes. Anna. And Bob. No he does"]),
    ],
)
async def test_speakers_have_the_names_that_were_given(context, query, shown):
    names = [{"type": "name", "speaker": n, "name": name} for n, name in ((1, "Zoë"), (3, "<b>"))]
    page, _ = await replayed(context, f"fade=0&lines=9{query}", [*names, *conversation()])
    assert await page.locator("#lines p").all_text_contents() == shown
    await page.evaluate("hear({ type: 'name', speaker: 2, name: 'Bo' })")  # what stands there stays
    assert await page.locator("#lines p").all_text_contents() == shown


async def test_text_from_right_to_left_begins_at_the_right_also_while_it_may_change(context):
    async with serving(streams := CountingStreams()) as server:
        address = f"http://127.0.0.1:{server.port}/overlay?size=40&width=600px"
        page, _ = await visit(context, address)
        streams.live.publish(
            Partial(seg=0, rev=1, start_ms=0, end_ms=500, text="السلام عليكم", stable=0)
        )
        line = page.locator("#lines p", has_text="السلام")
        await expect(line).to_be_visible()
        edges = (
            "(p) => p.parentElement.getBoundingClientRect().right - p.getBoundingClientRect().right"
        )
        assert await line.evaluate(edges) == 0
        streams.live.publish(final("السلام عليكم"))
        assert await line.evaluate(edges) == 0


async def test_a_sound_that_was_shown_does_not_come_again(context):
    music = {"type": "sound", "label": "music", "start_ms": 1000, "end_ms": 2000, "prob": 0.9}
    said = {"type": "final", "channel": 0, "end_ms": 4000, "words": []}
    finals = [said | {"seq": n, "seg": n, "start_ms": 3000, "text": f"word{n}"} for n in range(60)]
    hello = {"type": "hello", "session": "live", "epoch": "e", "seq": 60}
    page, _ = await replayed(context, "fade=0", [*finals, music | {"end_ms": 9000}, hello, music])
    await expect(page.locator("#lines")).not_to_contain_text("music")
