"""A document that is dropped on the page: its words are expected, listed, and can be removed."""

import json

import pytest
from playwright.async_api import expect

from streamd.documents import DocumentError
from streamd.whisper.terms import Term
from tests.server.test_uploads import Echo
from tests.support.browser import needs_chromium, visit
from tests.support.serving import CountingStreams, serving

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]


def read(file, name):
    file.seek(0)
    words = file.read().decode().split(",")
    if words == ["bad"]:
        raise DocumentError("it is damaged: save it as plain text")
    return [Term(word, 2, 3, is_name=True) for word in words]


DROP = """text => {
  const data = new DataTransfer();
  data.items.add(new File([text], "talk.md"));
  const drop = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  document.body.dispatchEvent(drop);
  return drop.defaultPrevented;
}"""


async def test_words_of_a_document_are_sent_listed_and_removed(context):
    streams, sent = CountingStreams(), []
    async with serving(streams, recordings=Echo()) as server:
        server.read_words = read
        page, wrong = await visit(context, f"http://127.0.0.1:{server.port}/")
        page.on("websocket", lambda opened: opened.on("framesent", lambda data: sent.append(data)))
        assert await page.evaluate(DROP, "Ana Botín,<b>kubelet</b>")
        await expect(page.locator("#toast")).to_contain_text("2 words of talk.md are expected")
        await page.get_by_role("button", name="Start").click()
        await expect(page.locator("#status")).to_have_text("live")
        await expect(page.locator("#partial .stable")).to_be_attached()
        await page.get_by_role("button", name="Settings").click()
        await page.set_input_files(
            "#document", {"name": "b.txt", "mimeType": "text/plain", "buffer": b"Zarautz"}
        )
        await expect(page.locator("#words button")).to_have_text(
            ["Ana Botín", "<b>kubelet</b>", "Zarautz"]
        )
        await page.get_by_role("button", name="Remove Ana Botín").click()
        await expect(page.locator("#words button")).to_have_count(2)
        await expect(page.get_by_role("button", name="Remove <b>kubelet</b>")).to_be_focused()
        commands = [json.loads(frame) for frame in sent if isinstance(frame, str)]
        assert [each["hotwords"].split("\n") for each in commands if "hotwords" in each] == [
            ["Ana Botín", "<b>kubelet</b>"],
            ["Ana Botín", "<b>kubelet</b>", "Zarautz"],
            ["<b>kubelet</b>", "Zarautz"],
        ]
        assert wrong == []


async def test_what_is_wrong_with_a_document_is_told(context):
    async with serving(CountingStreams(), recordings=Echo()) as server:
        server.read_words = read
        page, _ = await visit(context, f"http://127.0.0.1:{server.port}/")
        await page.evaluate(DROP, "bad")
        await expect(page.locator("#toast")).to_have_text(
            "talk.md is not used: it is damaged: save it as plain text"
        )
