"""The caption page in a real browser, against the real server: what test_page.py leaves out."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path

import jiwer
import numpy as np
import pytest
import soundfile
import soxr
import srt
import webvtt
import zxingcpp
from axe_playwright_python.async_playwright import Axe
from msgspec.structs import replace
from playwright.async_api import Page, expect
from websockets.asyncio.client import connect

from streamd.cli.bench import spoken
from streamd.events import (
    EndReason,
    Gap,
    SpeakerTurn,
    SpeakerTurns,
)
from streamd.labels import of_channel
from streamd.options import BindOptions, TokenOptions
from streamd.server import Invitation, Server
from streamd.streams.hub import Hub
from tests.support.browser import (
    HOSTILE,
    browser,
    final,
    needs_chromium,
    saved,
    visit,
    visit_over_a_line,
    visiting,
)
from tests.support.programs import PROGRAM, begun, logged
from tests.support.said import partial
from tests.support.serving import CHOICES, INFO, CountingStreams, serving

GOLDEN = Path(__file__).parents[1] / "golden"
WEB = Path(__file__).parents[2] / "clients" / "web"

pytestmark = [pytest.mark.page, needs_chromium, pytest.mark.asyncio(loop_scope="module")]


async def lines(page: Page) -> list[str]:
    return await page.locator("#log .text").all_text_contents()


async def test_two_hours_are_drawn_at_once_and_all_of_them_can_be_reached(context, streams):
    streams.live = Hub("live", 5000, choices=streams.live.choices)
    for n in range(4000):
        streams.live.publish(final(f"line {n}", 5000 * n, seg=n))
    async with visiting(context, streams) as (page, wrong):
        devtools = await context.new_cdp_session(page)
        await devtools.send("Performance.enable")
        await expect(page.locator("#log > *")).to_have_count(4000)
        measured = (await devtools.send("Performance.getMetrics"))["metrics"]
        counts = {each["name"]: each["value"] for each in measured}
        assert counts["LayoutCount"] < 400  # 4,000 and more if each final is drawn by itself
        frames = (
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        await page.evaluate(frames)
        box = "(p) => p.checkVisibility({ contentVisibilityAuto: true })"
        assert not await page.locator("#log .text").first.evaluate(box)  # it is not laid out
        assert await page.locator("#log .text").last.evaluate(box)
        bottom = "(e) => e.scrollHeight - e.scrollTop - e.clientHeight"
        assert await page.locator("#scroll").evaluate(bottom) < 40
        await expect(page.locator("#follow")).to_be_hidden()
        assert await page.evaluate("window.find('line 0')")  # as Ctrl+F does, but it scrolls
        await page.locator("#scroll").press("Home")
        await expect(page.locator("#log > *").first).to_be_in_viewport()
        await expect(page.locator("#follow")).to_be_visible()
        streams.live.publish(final("line 4000", 20_000_000, seg=4000))
        await expect(page.locator("#log > *")).to_have_count(4001)
        await expect(page.locator("#log > *").first).to_be_in_viewport()
        text = await saved(page, "txt")
        assert text.splitlines() == [f"line {n}" for n in range(4001)]
        assert wrong == []


async def test_it_is_taken_away_as_files_that_others_read(context, tmp_path, streams):
    text = "some words that follow each other --> until there are more of them than fit"
    for start_ms in (0, 20_000):
        streams.live.publish(final(text, start_ms))
    streams.live.publish(final(HOSTILE, 60_000))
    async with visiting(context, streams) as (page, _):
        await expect(page.locator("#log .text")).to_have_count(3)
        files = {}
        await page.get_by_role("button", name="Save").click()
        for form in ("txt", "srt", "vtt", "html", "jsonl"):
            async with page.expect_download() as download:
                await page.locator(f"[data-format={form}]").click()
            kept = await download.value
            assert kept.suggested_filename == f"live.{form}"
            await kept.save_as(tmp_path / form)
            files[form] = (tmp_path / form).read_text()
        harmless = HOSTILE.replace("\u202e", "\ufffd")
        assert files["txt"].splitlines() == [text, text, harmless]
        assert files["jsonl"].count("\n") == 3
        subtitles = list(srt.parse(files["srt"]))
        said = " ".join(" ".join(cue.content.splitlines()) for cue in subtitles)
        assert said.replace("\u2060", "") == f"{text} {text} {harmless}".replace("-->", "->")
        assert all(cue.start < cue.end for cue in subtitles)
        captions = list(webvtt.from_buffer(StringIO(files["vtt"])))
        assert len(captions) == len(subtitles)


async def test_without_the_server_there_are_text_and_json(context, streams):
    streams.live.publish(final("said before"))
    async with visiting(context, streams) as (page, _):
        await expect(page.locator("#log .text")).to_have_text(["said before"])
        await page.get_by_role("button", name="Save").click()
        streams.hub = lambda session: None
        await page.locator("[data-format=srt]").click()
        toast = page.locator("#toast")
        await expect(toast).to_have_text("there is no session 'live': save it as txt or jsonl")
    await page.locator("[data-format=html]").click()
    await expect(toast).to_have_text("streamd cannot be reached: save it as txt or jsonl")
    for form, text in (("txt", "said before\n"), ("jsonl", '{"type":"final"')):
        async with page.expect_download() as download:
            await page.locator(f"[data-format={form}]").click()
        path = await (await download.value).path()
        assert (await asyncio.to_thread(path.read_text)).startswith(text)


async def test_settings_stay_and_the_newest_line_is_followed(context, streams):
    async with serving(streams) as server:
        address = f"http://127.0.0.1:{server.port}/"
        page, _ = await visit(context, address)
        await page.get_by_role("button", name="Settings").click()
        await page.click("#contrast")
        await page.click("#confidence")
        await page.click("#larger")
        size = await page.evaluate("document.documentElement.style.getPropertyValue('--size')")
        await page.reload()
        root = page.locator("html")
        await expect(root).to_have_attribute("data-contrast", "on")
        await expect(root).to_have_attribute("data-confidence", "on")
        assert size == await page.evaluate(
            "document.documentElement.style.getPropertyValue('--size')"
        )
        for n in range(40):
            streams.live.publish(final(f"line number {n}", 5000 * n, prob=0.3))
        await expect(page.locator("#log .text")).to_have_count(40)
        await expect(page.locator("#log .text").last).to_be_in_viewport()
        await page.evaluate("document.getElementById('scroll').scrollTop = 0")
        await expect(page.locator("#follow")).to_be_visible()
        streams.live.publish(final("not in sight", 500_000))
        await expect(page.locator("#log .text")).to_have_count(41)
        await expect(page.locator("#log .text").last).not_to_be_in_viewport()
        await page.click("#follow")
        await expect(page.locator("#log .text").last).to_be_in_viewport()
        assert await page.locator("#log .w3").count() > 100


@pytest.mark.parametrize("rate_hz", [44_100, 48_000])
async def test_a_minute_of_microphone_drifts_by_less_than_two_milliseconds(context, rate_hz):
    """An offline context runs on the browser's own audio clock, as fast as it can."""
    async with visiting(context, CountingStreams(), path="overlay") as (page, wrong):
        n_samples = await page.evaluate(
            """async (rateHz) => {
              const context = new OfflineAudioContext(1, 60 * rateHz, rateHz);
              await context.audioWorklet.addModule("capture.js");
              const capture = new AudioWorkletNode(context, "streamd-capture");
              const tone = new OscillatorNode(context);
              tone.connect(capture).connect(context.destination);
              tone.start();
              let n = 0;
              capture.port.onmessage = ({ data }) => (n += data.length);
              await context.startRendering();
              const rest = new Promise((resolve) => {
                capture.port.onmessage = ({ data }) => {
                  n += data.length;
                  if (data.length < 1600) resolve();
                };
              });
              capture.port.postMessage("rest");
              await rest;
              return n;
            }""",
            rate_hz,
        )
        assert wrong == []
    assert abs(n_samples - 60 * 16_000) < 32


@asynccontextmanager
async def daemon(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A real streamd, and where it listens."""
    process = await begun(PROGRAM, "serve", "-m", "tiny.en", *arguments, stdout=None)
    try:
        address = await logged(process, rb"(?<=listening on ws://)[\w.:]+")
        yield process, f"http://{address}/"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


def recorded(path: Path, clip: str) -> str:
    """A clip as what a browser takes for its microphone, with silence around it."""
    samples, rate_hz = soundfile.read(GOLDEN / f"{clip}.flac", dtype="float32")
    assert rate_hz == 16_000
    loud = soxr.resample(samples, rate_hz, 48_000)
    silence = np.zeros(48_000 * 3 // 2, np.float32)
    soundfile.write(path, np.concatenate([silence, loud, silence, silence]), 48_000)
    return f"{path}%noloop"


SAID = "eight of spades four of clubs seven of hearts"


async def test_what_the_browser_hears_is_captioned(tmp_path):
    heard = recorded(tmp_path / "cards.wav", "cards")
    microphone = f"--use-file-for-fake-audio-capture={heard}"
    async with daemon("--port", "0") as (_, address), browser(microphone) as heard_by:
        page, wrong = await visit(await heard_by.new_context(), address)
        await page.click("#microphone")
        await expect(page.locator("#microphone")).to_have_text("Stop microphone")
        await expect(page.locator("#log .text")).to_have_count(1)
        await page.click("#microphone")
        await expect(page.locator("#microphone")).to_have_text("Start microphone")
        await expect(page.locator("#status")).to_contain_text("session ended")
        # The bundled model may get words wrong, and the fake microphone of a busy machine stutters.
        shown = spoken(" ".join(await lines(page)))
        assert jiwer.wer(" ".join(spoken(SAID)), " ".join(shown)) <= 1 / 3
        assert wrong == []


RECORD = """async ([ms, type]) => {
  const heard = { "/v1/stream": [], "/v1/listen": [], "/v2/listen": [] };
  const open = (path, query, text) => new Promise((opened) => {
    const socket = new WebSocket(`ws://${location.host}${path}?${query}`);
    socket.onopen = () => opened(socket);
    socket.onmessage = ({ data }) => heard[path].push(text(JSON.parse(data)));
    socket.ended = new Promise((ended) => { socket.onclose = ended; });
  });
  const ours = await open("/v1/stream", "role=both&session=recorder",
    (told) => told.type === "final" ? told.text : "");
  ours.send(JSON.stringify({ type: "start", encoding: "container" }));
  const sockets = [
    ours,
    await open("/v1/listen", "model=nova-3",
      (told) => told.is_final ? told.channel.alternatives[0].transcript : ""),
    await open("/v2/listen", "model=flux-general-en",
      (told) => told.event === "EndOfTurn" ? told.transcript : ""),
  ];
  const media = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(media, { mimeType: type });
  const parts = [];
  let sending = Promise.resolve();
  recorder.ondataavailable = ({ data }) => {
    parts.push(data);
    sending = sending.then(() => data.arrayBuffer())
      .then((bytes) => sockets.forEach((socket) => socket.send(bytes)));
  };
  const stopped = new Promise((stop) => { recorder.onstop = stop; });
  recorder.start(250);
  await new Promise((over) => setTimeout(over, ms));
  recorder.stop();
  await stopped;
  await sending;
  ours.send(JSON.stringify({ type: "stop" }));
  sockets.slice(1).forEach((socket) => socket.send(JSON.stringify({ type: "CloseStream" })));
  await Promise.all(sockets.map((socket) => socket.ended));
  const form = new FormData();
  form.append("file", new Blob(parts, { type }), "talk");
  const uploaded = await fetch("/v1/audio/transcriptions", { method: "POST", body: form });
  heard.upload = [(await uploaded.json()).text];
  const body = new Blob(parts, { type });
  const sent = await (await fetch("/v1/listen", { method: "POST", body })).json();
  heard.recording = [sent.results.channels[0].alternatives[0].transcript];
  return heard;
}"""


async def test_what_a_media_recorder_writes_is_heard_by_every_protocol(tmp_path):
    heard = recorded(tmp_path / "cards.wav", "cards")
    microphone = f"--use-file-for-fake-audio-capture={heard}"
    async with daemon("--port", "0") as (_, address), browser(microphone) as heard_by:
        page, wrong = await visit(await heard_by.new_context(), address)
        told = await page.evaluate(RECORD, [9_000, "audio/webm;codecs=opus"])
        assert len(told) == 5
        for texts in told.values():
            shown = spoken(" ".join(filter(None, texts)))
            assert jiwer.wer(" ".join(spoken(SAID)), " ".join(shown)) <= 1 / 3, told
        assert wrong == []


N_KEPT = """await new Promise((resolve) => {
  indexedDB.open("streamd").onsuccess = ({ target: { result } }) => {
    const count = result.transaction("items").objectStore("items").count();
    count.onsuccess = () => resolve(count.result);
  };
})"""


async def test_stop_and_start_go_on_in_one_transcript_that_a_reload_keeps(context, streams):
    async with serving(streams) as server:
        address = f"http://127.0.0.1:{server.port}/"
        page, wrong = await visit(context, address)
        button = page.get_by_role("button", name="microphone")
        for n in range(2):
            await button.click()
            await expect(page.locator("#status")).to_have_text("live")
            await expect(page.locator("#partial .stable")).to_be_attached()
            await button.click()
            await expect(page.locator("#log .text")).to_have_count(n + 1)
            await expect(button).to_have_text("Start microphone")
        (name,) = streams.ingests  # others who listen to it go on, too
        assert re.fullmatch(r"(Chrome|Browser)-\d{8}-\d{6}-[0-9a-f]{8}", name)
        await expect(page.locator("#session option:checked")).to_have_text(
            re.compile(r"^\w+, \d\d:\d\d$")
        )
        await expect(page.locator("#log > *").nth(1)).to_have_text(re.compile("continued at"))
        said = await lines(page)
        first, second = map(json.loads, (await saved(page, "jsonl")).splitlines())
        assert first["end_ms"] <= second["start_ms"]
        assert first["words"][-1]["end_ms"] <= second["words"][0]["start_ms"]
        assert wrong == []
    # Another server, which knows nothing of it.
    async with serving(CountingStreams(), port=server.port):
        await page.reload()
        await expect(page.locator("#log .text")).to_have_text(said)
        await expect(page.locator("#session option:checked")).to_contain_text(", ")
        await expect(page.locator("#status")).to_have_text("session ended")
        await page.get_by_role("button", name="Save").click()
        await page.get_by_role("button", name="Clear").click()
        await page.wait_for_function(f"async () => ({N_KEPT}) === 0")  # a reload could be quicker
        await page.reload()
        await expect(page.locator("#status")).to_have_text("waiting for this session")
        assert await lines(page) == []
        await page.locator("#session").select_option("New transcript")
        await expect(page.locator("#status")).to_have_text("not started")


async def test_where_nobody_speaks_the_page_waits_for_no_certain_session(context):
    class NoSessions(CountingStreams):
        def hub(self, session):
            return self.ingests[session].hub if session in self.ingests else None

        def names(self):
            return [*self.ingests]

    async with visiting(context, NoSessions()) as (page, _):
        for _ in range(2):  # the page writes the name of a session into its address
            await expect(page.locator("#status")).to_have_text("no session yet")
            await page.reload()
        await page.goto(page.url.partition("?")[0] + "?session=talk")
        await expect(page.locator("#status")).to_have_text("waiting for this session")


async def test_what_is_said_on_stays_in_its_paragraph_and_line(context, streams):
    streams.live.publish(final("We had everything", 0))
    async with visiting(context, streams) as (page, _):
        await expect(page.locator("#log p")).to_have_count(1)
        streams.live.publish(partial("before us", start_ms=1500))
        await expect(page.locator("#partial")).to_have_text("before us")
        rows = "(ids) => ids.map((id) => document.querySelector(id).getBoundingClientRect().y)"
        words_y, partial_y = await page.evaluate(rows, ["#log .text", "#partial .stable"])
        assert words_y == partial_y
        streams.live.publish(final("before us.", 1500, seg=1))
        await expect(page.locator("#log p")).to_have_text(
            re.compile("We had everything before us.$")
        )
        streams.live.publish(final("After a pause.", 5000, seg=2))
        await expect(page.locator("#log p")).to_have_count(2)
        streams.live.publish(final("昨日", 10_000, seg=3))
        streams.live.publish(final("今日", 10_400, seg=4))
        await expect(page.locator("#log p").last).to_have_text(re.compile("昨日今日$"))


async def test_the_page_says_why_there_are_no_captions(context):
    async with visiting(context, CountingStreams()) as (page, _):
        await expect(page.locator("#status")).to_have_text("live")
        await page.evaluate(
            """() => {
              navigator.mediaDevices.getUserMedia = async () => {
                throw new DOMException("Requested device not found", "NotFoundError");
              };
            }"""
        )
        await page.get_by_role("button", name="Start").click()
        await expect(page.locator("#toast")).to_have_text("There is no microphone: plug one in.")
    await expect(page.locator("#status")).to_have_text("streamd is not running any more")
    await page.get_by_role("button", name="Start").click()
    await expect(page.locator("#toast")).to_have_text("Streamd is not running any more.")


async def test_a_microphone_that_gives_only_zeros_is_reported(context):
    script = (WEB / "microphone.js").read_text().replace("MUTE_BLOCKS = 30", "MUTE_BLOCKS = 3")
    await context.route(
        "**/microphone.js", lambda route: route.fulfill(body=script, content_type="text/javascript")
    )
    async with visiting(context, CountingStreams()) as (page, _):
        await page.evaluate(
            """() => {
              const silence = new AudioContext().createMediaStreamDestination().stream;
              navigator.mediaDevices.getUserMedia = async () => silence;
            }"""
        )
        await page.get_by_role("button", name="Start").click()
        await expect(page.locator("#toast")).to_contain_text("only silence")


async def test_choices_are_sent_with_the_microphone_and_kept(context, streams):
    async with visiting(context, streams) as (page, _):
        await page.get_by_role("button", name="Settings").click()
        await page.locator("#language").select_option("German")
        await page.locator("#task").select_option("English (translation)")
        await page.reload()
        sent = []
        page.on("websocket", lambda opened: opened.on("framesent", lambda data: sent.append(data)))
        await page.get_by_role("button", name="Start").click()
        await expect(page.locator("#status")).to_have_text("live")
        await expect(page.locator("#partial .stable")).to_be_attached()
    starts = [json.loads(frame) for frame in sent if isinstance(frame, str)]
    assert starts[0]["language"] == "de"
    assert starts[0]["task"] == "translate"


async def test_the_sound_of_another_tab_is_captioned(context, streams):
    async with serving(streams) as server:
        playing, _ = await visit(context, f"http://127.0.0.1:{server.port}/overlay")
        await playing.evaluate(
            """() => {
              document.title = "tone";
              const context = new AudioContext();
              const tone = new OscillatorNode(context);
              tone.connect(context.destination);
              tone.start();
            }"""
        )
        page, _ = await visit(context, f"http://127.0.0.1:{server.port}/")
        await page.get_by_role("button", name="Settings").click()
        await page.locator("#source").select_option("A tab or the computer's sound")
        await page.get_by_role("button", name="Start").click()
        await streams.opened.wait()
        (ingest,) = streams.ingests.values()
        await ingest.until(lambda ingest: ingest.n_fed and np.abs(ingest.samples()).max() > 0.1)
        assert all(name.startswith("Sound-") for name in streams.ingests)
        await page.get_by_role("button", name="Stop sound").click()
        await ingest.until(lambda ingest: ingest.finished == "stop")


async def test_keys_work_unless_somebody_types_or_has_switched_them_off(context):
    async with visiting(context, CountingStreams()) as (page, _):
        size = "getComputedStyle(document.documentElement).getPropertyValue('--size')"
        before = await page.evaluate(size)
        await page.keyboard.press("+")
        assert await page.evaluate(size) != before
        await page.locator("#session").focus()
        await page.keyboard.press("-")
        assert await page.evaluate(size) != before
        await page.get_by_role("button", name="Settings").click()
        await page.get_by_role("button", name="Keyboard shortcuts").click()
        await page.keyboard.press("-")
        assert await page.evaluate(size) != before
        await page.get_by_role("button", name="Keyboard shortcuts").click()
        await page.keyboard.press("-")
        assert await page.evaluate(size) == before


async def test_the_screen_stays_on_while_there_are_captions(context, streams):
    await context.add_init_script(
        """navigator.wakeLock.request = async () => {
          document.title = "awake";
          return { release: () => (document.title = "asleep") };
        };"""
    )
    async with visiting(context, streams) as (page, _):
        await expect(page).to_have_title("awake")
        await page.keyboard.press("f")
        await expect(page.get_by_role("button", name="Full screen")).to_have_attribute(
            "aria-pressed", "true"
        )
        await page.keyboard.press("f")
        await expect(page.get_by_role("button", name="Full screen")).to_have_attribute(
            "aria-pressed", "false"
        )
        streams.live.close("end")
        await expect(page).to_have_title("asleep")


async def test_a_phone_reads_the_link_from_the_page(context):
    link = "http://192.0.2.7:8765/#token=0123456789abcdefABCDEF"
    async with serving(CountingStreams()) as server:
        page, wrong = await visit(context, f"http://127.0.0.1:{server.port}/")
        await page.get_by_role("button", name="Share").click()
        await expect(page.locator("#how")).to_contain_text("--share")
        await expect(page.locator("#code")).to_be_hidden()
        await page.keyboard.press("Escape")
        server.invitation = Invitation(link)
        await page.get_by_role("button", name="Share").click()
        await expect(page.locator("#code")).to_be_visible()
        drawn = await page.locator("#code path").get_attribute("d")
    runs = [tuple(map(int, run)) for run in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\d+z", drawn)]
    size = max(x + n for x, _, n in runs) + 4
    image = np.full((size, size), 255, np.uint8)
    for x, y, n in runs:
        image[y, x : x + n] = 0
    (found,) = zxingcpp.read_barcodes(np.kron(image, np.ones((4, 4), np.uint8)))
    assert found.text == link.replace("#", "?session=live#")
    assert [line for line in wrong if "404" not in line] == []


async def test_in_full_screen_the_bars_leave_while_nothing_is_touched(context, streams):
    streams.live.publish(final("Some words", 0))
    async with visiting(context, streams) as (page, _):
        await expect(page.locator(".final")).to_be_visible()
        await page.clock.install()
        await page.mouse.move(100, 300)
        await page.clock.run_for(10_000)
        await expect(page.locator("footer")).to_be_visible()  # not in full screen
        await page.get_by_role("button", name="Full screen").click()
        await expect(page.get_by_role("button", name="Full screen", pressed=True)).to_be_visible()
        await page.clock.run_for(3_000)
        await expect(page.locator("footer")).to_be_hidden()
        await expect(page.locator("header")).to_be_hidden()
        main = await page.locator("#scroll").bounding_box()
        assert main["height"] == await page.evaluate("innerHeight")
        await page.mouse.move(200, 300)
        await expect(page.locator("footer")).to_be_visible()
        await page.clock.run_for(3_000)
        await expect(page.locator("footer")).to_be_hidden()
        streams.live.close(EndReason.END)
        await expect(page.locator("#status")).to_be_visible()  # there is something to say


SMALL = """[...document.querySelectorAll("button, select, input")]
.filter((each) => each.checkVisibility())
.filter((each) => each.offsetWidth < 44 || each.offsetHeight < 44)
.map((each) => each.outerHTML)"""


async def test_everybody_can_read_and_press_it(context, streams):
    """WCAG as far as axe-core checks it; 44 px for fingers; captions on most of a small screen."""
    streams.live.publish(final("Some words of little confidence", 0, prob=0.3))
    streams.live.publish(final("and some of unknown confidence", 2000, prob=None))
    streams.live.publish(Gap(t_ms=4000, duration_ms=1500, why="overrun"))
    axe = Axe()
    async with serving(streams) as server:
        server.invitation = Invitation("http://192.0.2.7:8765/#token=")
        page, _ = await visit(context, f"http://127.0.0.1:{server.port}/")
        streams.live.publish(partial("and more", start_ms=9000, stable=3))
        await expect(page.locator("#partial")).to_have_text("and more")
        await page.evaluate("document.getElementById('confidence').click()")
        assert await page.locator("#log .w3").all_inner_texts() == [
            "Some",
            "words",
            "of",
            "little",
            "confidence",
        ]
        for change in ("theme", "contrast", "theme", "Share", "Save", "Settings"):
            if change.islower():
                await page.evaluate(f"document.getElementById('{change}').click()")
            else:
                await page.get_by_role("button", name=change, exact=True).click()
            # Colours in the middle of a fade are none that anybody has to read.
            await page.evaluate(
                "Promise.all(document.getAnimations().map((each) => each.finished))"
            )
            assert (await axe.run(page)).response["violations"] == []
            assert await page.evaluate(SMALL) == []
        for width, height, least in (
            (1280, 800, 0.8),
            (390, 844, 0.85),
            (360, 740, 0.84),
            (844, 390, 0.85),
        ):
            await page.set_viewport_size({"width": width, "height": height})
            main = await page.locator("#scroll").bounding_box()
            assert main["height"] >= least * height
            assert await page.evaluate("document.documentElement.scrollWidth") == width
            assert await page.evaluate(SMALL) == []


async def test_tentative_words_are_told_apart_where_the_user_has_chosen_the_colours(
    context, streams
):
    streams.live.publish(final("Some words", 0))
    async with visiting(context, streams) as (page, _):
        await page.emulate_media(forced_colors="active")
        streams.live.publish(partial("and more", start_ms=1000, stable=3))
        await expect(page.locator("#partial")).to_contain_text("and more")
        look = "(({color, fontStyle}) => [color, fontStyle])(getComputedStyle(%s))"
        final_look, stable, tentative = [
            await page.evaluate(look % f"document.querySelector('{where}')")
            for where in ("#log .text", "#partial .stable", "#partial")
        ]
        assert stable == final_look
        assert tentative[0] != final_look[0]
        assert (tentative[1], final_look[1]) == ("italic", "normal")
        dots = "['#status', '#microphone .dot'].map((where) => getComputedStyle("
        dots += "document.querySelector(where), where === '#status' ? '::before' : null)"
        assert await page.evaluate(f"{dots}.borderTopWidth)") != ["0px", "0px"]
        assert (await Axe().run(page)).response["violations"] == []


async def test_a_long_paragraph_ends_where_somebody_breathes(context, streams):
    sentence = "Twelve words that somebody says one after the other, and no more."
    for n in range(12):  # each takes 3.6 s; every fifth one is followed by a breath
        start_ms = 3_600 * n + 500 * (n // 5)
        streams.live.publish(final(sentence, start_ms, seg=n))
    async with visiting(context, streams) as (page, _):
        await expect(page.locator("#log .text")).to_have_count(12)
        counts = "(all) => all.map((p) => p.querySelectorAll('.text').length)"
        assert await page.locator("#log p").evaluate_all(counts) == [5, 5, 2]


async def test_each_script_has_a_paragraph_and_a_direction_of_its_own(context, streams):
    texts = ["Some letters.", "这是句子。", "السلام عليكم 95%.", "And English."]
    for n, text in enumerate(texts):
        streams.live.publish(final(text, 1000 * n, seg=n))
    streams.live.publish(by(1, final("שלום עולם.", 4000, seg=4)))
    async with visiting(context, streams) as (page, wrong):
        await expect(page.locator("#log p")).to_have_count(5)
        assert wrong == []
        directions = "(all) => all.map((p) => getComputedStyle(p).direction)"
        found = await page.locator("#log p").evaluate_all(directions)
        assert found == ["ltr", "ltr", "rtl", "ltr", "rtl"]
        await page.set_viewport_size({"width": 390, "height": 780})
        right = "p => p.getBoundingClientRect().right"
        time, whole = page.locator("#log time").nth(2), page.locator("#log p").nth(2)
        assert await time.evaluate(f"time => ({right})(time)") == await whole.evaluate(right)
        assert await time.evaluate("time => getComputedStyle(time).textAlign") == "start"


async def test_a_visitor_is_invited_and_sees_nobody_elses_words_unasked(context):
    async with serving(streams := CountingStreams()) as server:
        audio = f"ws://127.0.0.1:{server.port}/v1/listen?encoding=linear16&sample_rate=16000"
        async with connect(audio) as deepgram:
            await deepgram.send(bytes(6400))
            await deepgram.send('{"type": "Finalize"}')
            await deepgram.recv()
            body = json.dumps({"sessions": [{"name": n} for n in streams.names() if n != "live"]})
            page = await context.new_page()
            await page.route("**/v1/sessions", lambda route: route.fulfill(body=body))
            await page.goto(f"http://127.0.0.1:{server.port}/")
            await expect(page.locator("#hint")).to_contain_text("Start the microphone")
            await expect(page.locator("#status")).to_have_text("not started")
            assert await lines(page) == []
            offered = await page.locator("#session option").all_text_contents()
            assert re.fullmatch(r"Deepgram, \d\d:\d\d", offered[0])
            await page.locator("#session").select_option(offered[0])
            await expect(page.locator("#log .text")).not_to_have_count(0)


async def test_it_can_be_installed(context):
    async with visiting(context, CountingStreams()) as (page, wrong):
        devtools = await context.new_cdp_session(page)
        manifest = await devtools.send("Page.getAppManifest")
        assert manifest["errors"] == []
        assert json.loads(manifest["data"])["display"] == "standalone"
        assert wrong == []


async def test_a_listener_that_is_stopped_before_it_is_connected_logs_no_error(context):
    async with visiting(context, CountingStreams()) as (page, wrong):
        await expect(page.locator("#status")).to_have_text("live")
        closed = await page.evaluate(
            """async () => {
              const { Listening } = await import("./connection.js");
              const sockets = [];
              const Native = WebSocket;
              window.WebSocket = class extends Native {
                constructor(...args) { super(...args); sockets.push(this); }
              };
              const told = { changed: () => {}, status: () => {} };
              new Listening("live", { resume: {}, ended: null }, told).stop();
              const [socket] = sockets;
              const { code } = await new Promise((resolve) =>
                socket.addEventListener("close", resolve));
              return code;
            }"""
        )
    assert closed == 1005  # closed by the page, after the handshake
    assert wrong == []


async def test_a_broken_connection_costs_no_sample_and_doubles_none(context):
    """A ramp instead of the microphone, over a line that breaks again and again."""
    async with visit_over_a_line(context) as (streams, relay, page):
        relay.cut_after = iter((30_000, 60_000, 45_000))
        n_calls = relay.n_calls
        await page.evaluate(
            """async () => {
              const { Sending } = await import("./microphone.js");
              const told = { named: () => {}, failed: (why) => console.error(why) };
              const sending = new Sending(told, () => console.error("gave up"));
              for (let n = 0; n < 90_000; n += 1500) {
                const ramp = (_, i) => ((n + i) % 60_000) - 30_000;
                sending.send(Int16Array.from({ length: 1500 }, ramp));
              }
              sending.stop();
            }"""
        )
        await asyncio.wait_for(streams.opened.wait(), 20)
        (ingest,) = streams.ingests.values()
        await ingest.until(lambda ingest: ingest.finished != "")
    assert ingest.finished == "stop"
    assert relay.n_calls - n_calls >= 4  # it came back each time
    heard = np.rint(ingest.samples()[:90_000] * 32768)
    assert np.array_equal(heard, np.arange(90_000) % 60_000 - 30_000)


async def test_a_page_with_the_token_of_listeners_is_told_that_it_may_not_speak(context):
    bind = BindOptions(port=0, token="secret", listen_token="ears")
    async with Server(bind, sessions=CountingStreams(), info=INFO) as server:
        page, _ = await visit(context, f"{server.page}#token=ears")
        await expect(page.locator("#status")).to_have_text("live")
        why = await page.evaluate(
            """async () => {
              const { Sending } = await import("./microphone.js");
              return new Promise((failed) => new Sending({ failed }, () => {}));
            }"""
        )
    assert "this token is for listeners" in why


async def test_the_page_survives_a_daemon_that_is_killed_and_started_again(context, tmp_path):
    journal = ["--journal", str(tmp_path)]
    async with daemon("--port", "0", *journal) as (process, address):
        port = address.rpartition(":")[2].strip("/")
        async with speaking(port):
            page, _ = await visit(context, f"{address}?session=talk")
            await expect(page.locator("#log .text")).to_have_count(1)
            said = await lines(page)
            process.kill()
            await expect(page.locator("#status")).to_have_text("streamd is not running any more")
        await process.wait()
    async with daemon("--port", port, *journal), speaking(port):
        await expect(page.locator("#log .text")).to_have_count(2)
        assert (await lines(page))[:1] == said


@asynccontextmanager
async def speaking(port: str) -> AsyncIterator[None]:
    """Somebody who has said this into the session "talk", and stays."""
    pcm, _ = soundfile.read(GOLDEN / "cards.flac", dtype="int16")
    address = f"ws://127.0.0.1:{port}/v1/stream?role=ingest&session=talk"
    async with connect(address, proxy=None) as connection:
        await connection.send(pcm.tobytes())
        await connection.send('{"type":"flush","id":"all"}')
        while json.loads(await connection.recv())["type"] != "flushed":
            pass
        yield


def by(speaker: int, event):
    return replace(event, words=tuple(replace(word, speaker=speaker) for word in event.words))


async def test_each_speaker_has_a_paragraph_and_gets_a_name(context, streams):
    for n, (speaker, text) in enumerate(
        [(1, "Who is there?"), (2, "Me."), (2, "Only me."), (1, "Oh.")]
    ):
        streams.live.publish(by(speaker, final(text, 1000 * n, seg=n)))
    both = final("No. Yes.", 4000, seg=4)
    first, second = both.words
    said = (replace(first, speaker=1), replace(second, speaker=2))
    streams.live.publish(replace(both, words=said))
    async with visiting(context, streams) as (page, wrong):
        await expect(page.locator("#log .final")).to_have_text(
            [
                "0:00Speaker 1 Who is there?",
                "0:01Speaker 2 Me. Only me.",
                "0:03Speaker 1 Oh. No. ",
                "0:04Speaker 2 Yes.",
            ]
        )
        # A line with a name is as high as any other, or text would jump when it becomes final.
        lines = "(all) => all.map((p) => parseFloat(getComputedStyle(p).height) / "
        lines += "parseFloat(getComputedStyle(p).lineHeight))"
        inner = "document.querySelectorAll('#log > .final').forEach((p) => p.style.boxSizing = "
        await page.evaluate(f"{inner}'content-box')")
        heights = await page.locator("#log > .final").evaluate_all(lines)
        await page.evaluate(f"{inner}'')")
        assert heights[:3] == pytest.approx([1, 1, 1], abs=0.02)
        next_one = partial("So", start_ms=5000, seg=5, stable=2, words=said[:1])
        streams.live.publish(by(1, next_one))
        await page.get_by_role("button", name="Speaker 2").first.click()
        await page.locator("#name").fill("Ana <b>")
        await page.get_by_role("button", name="Save").last.click()
        await expect(page.locator("#log .who")).to_have_text(
            ["Speaker 1", "Ana <b>", "Speaker 1", "Ana <b>"]
        )
        await page.reload()
        await expect(page.locator("#log .who")).to_have_text(
            ["Speaker 1", "Ana <b>", "Speaker 1", "Ana <b>"]
        )
        for theme in ("dark", "light"):
            assert (await Axe().run(page)).response["violations"] == [], theme
            await page.locator("#theme").evaluate("button => button.click()")
        assert wrong == []


async def test_a_name_that_the_owner_gives_is_seen_by_all_readers(context, streams):
    """Also by those who come later, in their files, and after the session has ended."""
    streams.live.publish(by(1, final("Hello.", 0)))
    bind = BindOptions(port=0, token="secret", listen_token="ears")
    async with Server(bind, sessions=streams, info=INFO) as server:
        address = f"http://127.0.0.1:{server.port}/"
        reader, reads = await visit(context, f"{address}#token=ears")
        owner, owns = await visit(context, f"{address}#token=secret")
        await owner.get_by_role("button", name="Speaker 1").first.click()
        await expect(owner.locator("#for-all")).to_be_visible()
        await expect(owner.locator("#keep-name")).to_be_hidden()
        await owner.locator("#name").fill("Ana <b>")
        await owner.get_by_role("button", name="Save").last.click()
        for page in (owner, reader):
            await expect(page.locator("#log .who")).to_have_text(["Ana <b>"])
        await reader.reload()
        await expect(reader.locator("#log .who")).to_have_text(["Ana <b>"])
        await reader.get_by_role("button", name="Ana <b>").first.click()
        await expect(reader.locator("#for-all")).to_be_hidden()
        await expect(reader.locator("#keep-name")).to_be_visible()
        assert reads == owns == []


async def test_names_of_speakers_are_those_of_one_run(context, streams):
    """Speaker 1 of tomorrow's session of the same name is somebody else."""
    streams.live.publish(by(1, final("Hello.", 0)))
    bind = BindOptions(port=0, token="secret", listen_token="ears")
    async with serving(streams, bind=bind) as server:
        # Who only listens has names of their own.
        page, wrong = await visit(context, f"http://127.0.0.1:{server.port}/#token=ears")
        who = page.locator("#log .who")
        for run, name in (("e1", "Ana"), ("e2", "Bea")):
            if run == "e2":
                streams.live.close("end")
                streams.live = Hub("live", epoch="e2", choices=CHOICES)
                streams.live.publish(by(1, final("Good morning.", 0)))
                await page.reload()
                await expect(who).to_have_text(["Ana", "Speaker 1"])
            await who.last.click()
            await page.locator("#keep-name").check()
            await page.locator("#name").fill(name)
            await page.get_by_role("button", name="Save").last.click()
        for _ in range(2):
            await expect(who).to_have_text(["Ana", "Bea"])
            for form, lines in (
                ("txt", ["Ana: Hello.", "Bea: Good morning."]),
                ("vtt", ["<v Bea>Good morning."]),  # the server has only this run
            ):
                text = await saved(page, form)
                assert [
                    each for each in text.splitlines() if "." in each and "-->" not in each
                ] == lines
            await expect(page.locator("#toast")).to_contain_text("since the session began again")
            await page.reload()
        await page.evaluate("localStorage.clear()")
        await page.reload()
        await expect(who).to_have_text(["Speaker 1", "Speaker 1"])
        assert wrong == []


def told(start_ms: int, *turns: tuple[int, int, int]) -> SpeakerTurns:
    """Who talks from `start_ms` to the last of the turns: (start_ms, end_ms, speaker)."""
    said = tuple(SpeakerTurn(start_ms=a, end_ms=b, speaker=speaker) for a, b, speaker in turns)
    return SpeakerTurns(start_ms=start_ms, end_ms=turns[-1][1], turns=said)


async def test_a_revised_speaker_moves_paragraphs_and_names_but_no_word(context, streams):
    for n, (speaker, text) in enumerate(
        [(1, "Who is there?"), (2, "Me."), (2, "Only me."), (3, "Oh.")]
    ):
        streams.live.publish(by(speaker, final(text, 1000 * n, seg=n)))
    async with visiting(context, streams) as (page, wrong):
        shown = page.locator("#log .final")
        before = ["0:00Speaker 1 Who is there?", "0:01Speaker 2 Me. Only me.", "0:03Speaker 3 Oh."]
        await expect(shown).to_have_text(before)
        await shown.first.evaluate("paragraph => (paragraph.stays = true)")
        # What follows was heard from 2 s on; nothing before it was revised.
        streams.live.publish(told(3_900, (3_900, 5_000, 1)))
        streams.live.publish(by(1, final("Come in.", 4000, seg=4)))
        await expect(shown).to_have_text([*before, "0:04Speaker 1 Come in."])
        # "Only me." was the third speaker's, who is the first one.
        streams.live.publish(told(1_900, (1_950, 2_900, 1), (2_950, 3_900, 1), (3_900, 5_000, 1)))
        await expect(shown).to_have_text(
            [
                "0:00Speaker 1 Who is there?",
                "0:01Speaker 2 Me.",
                "0:02Speaker 1 Only me. Oh. Come in.",
            ]
        )
        assert await shown.first.evaluate("paragraph => paragraph.stays")
        streams.live.publish(by(1, final("Now.", 5000, seg=5)))
        await expect(shown.last).to_have_text("0:02Speaker 1 Only me. Oh. Come in. Now.")
        streams.live.publish(told(0, (0, 950, 2), (1000, 1950, 2), (1950, 6000, 1)))
        merged = ["0:00Speaker 2 Who is there? Me.", "0:02Speaker 1 Only me. Oh. Come in. Now."]
        await expect(shown).to_have_text(merged)
        text = await saved(page, "txt")
        assert text.splitlines()[:3] == [
            "Speaker 2: Who is there?",
            "Speaker 2: Me.",
            "Speaker 1: Only me.",
        ]
        await page.reload()
        await expect(shown).to_have_text(merged)
        assert wrong == []


async def test_each_channel_has_a_partial_of_its_own(context, streams):
    async with visiting(context, streams) as (page, wrong):
        await expect(page.locator("#status")).to_have_text("live")

        def said(channel: int, text: str, seg: int) -> None:
            whole = final(text, 1000 * seg, seg=seg)
            now = partial(text, seg=seg, start_ms=1000 * seg, end_ms=9000, words=whole.words)
            streams.live.publish(of_channel(now, channel))

        said(1, "I think", 1)
        said(2, "Yes", 2)
        line = page.locator("#partial")
        await expect(line).to_have_text("Speaker 1 I thinkSpeaker 2 Yes")
        streams.live.publish(of_channel(final("Yes.", 2000, seg=2), 2))
        await expect(page.locator("#log .final")).to_have_text(["0:02Speaker 2 Yes."])
        await expect(line).to_have_text("Speaker 1 I think")
        streams.live.publish(of_channel(final("I think so.", 1000, seg=1), 1))
        await expect(line).to_have_text("")
        assert wrong == []


async def test_a_word_is_corrected_by_mouse_and_keyboard_and_every_reader_sees_it(context, streams):
    streams.live.publish(final("Ana Bottin, said it."))
    async with serving(streams) as server:
        address = f"http://127.0.0.1:{server.port}/"
        page, wrong = await visit(context, address)
        reader, _ = await visit(context, address)
        await page.get_by_text("Bottin,", exact=True).click()
        await expect(page.locator("#heard")).to_have_value("Bottin")
        await page.keyboard.press("Escape")
        await page.keyboard.press("w")
        await page.locator("#heard").fill("ana bottin")
        await page.locator("#meant").fill("Ana, Botín")  # two phrases
        await page.keyboard.press("Enter")
        await expect(page.locator("#meant:invalid")).to_be_visible()
        await page.locator("#meant").fill("Ana Botín")
        await page.locator("#keep-word").check()
        assert (await Axe().run(page)).response["violations"] == []
        await page.keyboard.press("Enter")
        for each in (page, reader):
            await expect(each.locator("#log del")).to_have_text("Ana Bottin,")
            await expect(each.locator("#log ins")).to_have_text("Ana Botín,")
        await expect(page.locator("#toast")).to_have_text("Expected from now on: Ana Botín")
        await expect(reader.locator("#toast")).to_be_hidden()
        assert streams.stream.corrected == [("Ana Botín", True)]
        # It stays corrected, and can be corrected once more.
        await page.reload()
        await page.locator("#log ins").click()
        await page.locator("#meant").fill("Anna Botín")
        await page.get_by_role("button", name="Correct", exact=True).click()
        await expect(page.locator("#log .text")).to_have_text("Ana Bottin,Anna Botín, said it.")
        await page.evaluate("Promise.all(document.getAnimations().map((each) => each.finished))")
        for theme in ("dark", "light"):
            assert (await Axe().run(page)).response["violations"] == [], theme
            await page.locator("#theme").evaluate("button => button.click()")
        files = {}
        for form in ("txt", "jsonl"):
            files[form] = await saved(page, form)
        assert files["txt"] == "Anna Botín, said it.\n"
        assert json.loads(files["jsonl"])["text"] == "Ana Bottin, said it."
        assert wrong == []


async def test_after_the_end_this_browser_and_the_server_are_corrected(context, streams):
    streams.live.publish(final("Ana Bottin, said it."))
    async with serving(streams) as server:
        page, _ = await visit(context, f"http://127.0.0.1:{server.port}/")
        await expect(page.locator("#status")).to_have_text("live")
        streams.live.close("stop")
        await expect(page.locator("#status")).to_have_text("session ended")
        await page.get_by_text("Bottin,", exact=True).click()
        await page.locator("#meant").fill("Botín")
        async with page.expect_response("**/transcript") as answer:
            await page.keyboard.press("Enter")
        assert (await answer.value).status == 204
        await expect(page.locator("#log ins")).to_have_text("Botín,")
        late, _ = await visit(await context.browser.new_context(), page.url)
        await expect(late.locator("#log ins")).to_have_text("Botín,")
    # Without the server, it is corrected here.
    await page.get_by_text("said", exact=True).click()
    await page.locator("#meant").fill("says")
    await page.keyboard.press("Enter")
    await expect(page.locator("#log ins").last).to_have_text("says")


async def test_a_mere_reader_cannot_correct(context, streams):
    streams.live.publish(final("Ana Bottin"))
    bind = BindOptions(port=0, token="secret", listen_token="ears")
    async with Server(bind, sessions=streams, info=INFO) as server:
        page, _ = await visit(context, f"{server.page}#token=ears")
        await expect(page.locator("#status")).to_have_text("live")
        await page.get_by_text("Bottin").click()
        await page.keyboard.press("w")
        await expect(page.locator("#correcting")).to_be_hidden()
        await page.get_by_role("button", name="Settings").click()
        await expect(page.locator("#correct")).to_be_hidden()
        await page.evaluate("sessionStorage.setItem('streamd.token', 'secret')")
        await page.reload()
        await page.get_by_text("Bottin").click()
        await expect(page.locator("#correcting")).to_be_visible()


async def test_the_keyboard_reaches_the_controls_behind_a_thousand_names(context, streams):
    for n in range(1000):
        streams.live.publish(by(1 + n % 2, final("Yes.", 3000 * n, seg=n)))
    async with visiting(context, streams) as (page, _):
        await expect(page.locator("#log .who")).to_have_count(1000)
        reached = []
        while "microphone" not in reached and len(reached) < 6:
            await page.keyboard.press("Tab")
            reached.append(await page.evaluate("document.activeElement.id"))
        assert reached[-1] == "microphone", reached
        assert len(reached) <= 5
        # A name is given in Settings, and stands everywhere.
        await page.get_by_role("button", name="Settings").click()
        await page.locator("#speakers").get_by_role("button", name="Speaker 2").press("Enter")
        await page.locator("#name").fill("Ana")
        await page.locator("#name").press("Enter")
        await expect(page.locator("#log .who").nth(999)).to_have_text("Ana")
        assert await page.locator("#log .who", has_text="Ana").count() == 500


async def test_at_400_percent_every_control_can_be_reached(context):
    async with visiting(context, CountingStreams()) as (page, _):
        for width, height in ((320, 256), (320, 640), (640, 300)):
            await page.set_viewport_size({"width": width, "height": height})
            boxes = """(all) => all.filter((b) => b.checkVisibility()).map((b) => {
              const { left, right, top, bottom } = b.getBoundingClientRect();
              return left >= 0 && right <= innerWidth && top >= 0 && bottom <= innerHeight;
            })"""
            found = await page.locator("header select, footer button").evaluate_all(boxes)
            assert len(found) >= 7, found
            assert all(found), (width, height, found)
            text = await page.locator("#scroll").evaluate("e => e.clientHeight")
            assert text >= height - 130  # and there is room for text


@pytest.mark.parametrize("size", [(1280, 800), (390, 780)])
async def test_what_may_still_change_stands_where_its_final_will(context, size, streams):
    spoken = {"السلام عليكم": 10, "و عليكم": 2, "Hello there": 10, "שלום עולם": 10}
    async with visiting(context, streams) as (page, _):
        await page.set_viewport_size({"width": size[0], "height": size[1]})
        at_ms = 0
        place = """(all) => {
          const range = document.createRange();
          range.selectNodeContents(all.at(-1));
          const { left, right, bottom } = range.getBoundingClientRect();
          return [left, right, innerHeight - bottom];
        }"""
        for n, (text, after_s) in enumerate(spoken.items()):
            at_ms += 300 + after_s * 1000 - 1000 * (after_s < 10)
            streams.live.publish(partial(text, seg=n, start_ms=at_ms))
            await expect(page.locator("#partial")).to_have_text(text)
            guess = await page.locator("#partial .w0, #partial").evaluate_all(place)
            streams.live.publish(final(text, at_ms, seg=n))
            await expect(page.locator("#log .text")).to_have_count(n + 1)
            await expect(page.locator("#partial")).to_have_text("")
            settled = await page.locator("#log .text").evaluate_all(place)
            assert settled[:2] == pytest.approx(guess[:2], abs=1), text
            at_ms += 600


async def test_korean_words_are_not_broken_also_while_they_may_change(context, streams):
    streams.live.publish(replace(final("이야기합니다"), language="ko"))
    streams.live.publish(replace(final("日本語です", 9000, seg=1), language="ja"))
    streams.live.publish(partial("한국어", seg=2, start_ms=20_000))
    async with visiting(context, streams) as (page, _):
        await expect(page.locator("#partial")).to_have_text("한국어")
        breaks = "(all) => all.map((e) => getComputedStyle(e).wordBreak)"
        found = await page.locator("#log .text, #partial").evaluate_all(breaks)
        assert found == ["keep-all", "normal", "keep-all"]


async def test_a_phone_without_https_copies_stays_awake_and_is_offered_no_microphone(streams):
    rules = "--host-resolver-rules=MAP captions.test 127.0.0.1"
    streams.live.publish(final("Take this away."))
    async with browser(rules) as chromium, serving(streams, token="secret") as server:
        page, _ = await visit(
            await chromium.new_context(), f"http://captions.test:{server.port}/#token=secret"
        )
        await expect(page.locator("#status")).to_have_text("live")
        assert not await page.evaluate("isSecureContext || Boolean(navigator.wakeLock)")
        await expect(page.locator("#microphone")).to_be_hidden()
        playing = "(video) => !video.paused && video.readyState >= 2 && video.videoWidth > 0"
        await expect(page.locator("video")).to_have_count(1)
        assert await page.locator("video").evaluate(
            f"async (video) => {{ await video.play(); return ({playing})(video); }}"
        )
        await page.get_by_role("button", name="Save").click()
        await page.locator("#copy").click()
        await expect(page.locator("#toast")).to_have_text("Copied 1 line")
        await page.keyboard.press("Escape")
        await page.evaluate("document.body.append(document.createElement('textarea'))")
        await page.locator("textarea").press("Control+V")
        assert await page.locator("textarea").input_value() == "Take this away.\n"
        await page.locator("#session").select_option("New transcript")
        await expect(page.locator("#hint")).to_contain_text("only on localhost and on https pages")
        await expect(page.locator("video")).to_have_count(0)


async def test_a_listener_is_offered_no_microphone_and_a_wrong_token_is_called_wrong(context):
    bind = BindOptions(port=0, token="secret", listen_token="ears")
    async with Server(bind, sessions=CountingStreams(), info=INFO) as server:
        page, _ = await visit(context, server.page)
        ask = page.locator("#ask")
        await expect(ask).to_contain_text("This server requires a token.")
        await expect(page.locator("#wrong-token")).to_be_hidden()
        await page.locator("#token").fill("guessed")
        await page.locator("#token").press("Enter")
        await expect(page.locator("#wrong-token")).to_have_text("This token is wrong.")
        await page.locator("#token").fill("ears")
        await page.locator("#token").press("Enter")
        await expect(page.locator("#status")).to_have_text("live")
        await expect(page.locator("#microphone")).to_be_hidden()
        await page.keyboard.press("m")
        await expect(page.locator("#toast")).to_be_hidden()


async def test_a_page_whose_token_is_for_certain_sessions_begins_with_one_of_them(context):
    alice = TokenOptions(name="alice", token="alice-0123456789abcdef", sessions=("alice-*",))
    hall = TokenOptions(
        name="hall", token="hall-0123456789abcdef", may="listen", sessions=("keynote",)
    )
    bind = BindOptions(port=0, tokens=(alice, hall))
    async with Server(bind, sessions=(streams := CountingStreams()), info=INFO) as server:
        page, _ = await visit(context, f"{server.page}#token={alice.token}")
        await expect(page.locator("#status")).to_have_text("not started")
        await page.get_by_role("button", name="Start").click()
        await expect(page.locator("#status")).to_have_text("live")
        (name,) = streams.ingests
        assert re.fullmatch(r"alice-Chrome-\d{8}-\d{6}-[0-9a-f]{8}", name)
        await page.get_by_role("button", name="Share").click()
        await expect(page.locator("#how")).to_contain_text("Only this computer")  # as it is
        await page.close(run_before_unload=False)
        streams.open("keynote").hub.publish(final("Welcome."))
        page, _ = await visit(context, f"{server.page}#token={hall.token}")
        await expect(page.locator("#log .text")).to_have_text(["Welcome."])


async def test_a_microphone_that_has_to_wait_for_room_says_so(context):
    async with serving(streams := CountingStreams()) as server:
        streams.max_streams = 0
        page, _ = await visit(context, f"http://127.0.0.1:{server.port}/")
        await page.get_by_role("button", name="Start").click()
        await expect(page.locator("#toast")).to_have_text(
            "Not captioned yet: no room for another stream"
        )
        streams.max_streams = 1
        await expect(page.locator("#session option:checked")).to_contain_text("Chrome, ")
        await expect(page.locator("#status")).to_have_text("live")
