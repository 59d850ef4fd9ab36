"""Of one conversation all readers have the same words and speakers: page, files, export, late."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from playwright._impl._driver import compute_driver_executable

from streamd.events import Correction, encode
from streamd.streams.hub import Hub
from streamd.streams.journal.database import Database

ROOT = Path(__file__).parents[2]
SPEECH = ROOT / "tests" / "speech" / "demo.flac"
CONVERSATION = ROOT / "../shared/data/conversations/streams/conv1_dev.flac"
FORMATS = ("json", "jsonl", "csv", "txt", "vtt")
PAGE = """
import { readFileSync } from "node:fs";
const { Transcript, corrected } = await import(process.argv[2]);
const page = new Transcript();
page.apply({ type: "hello", epoch: "e", seq: 0, started: "2026-01-01T00:00:00Z" });
for (const line of readFileSync(0, "utf8").trim().split("\\n")) page.apply(JSON.parse(line));
const words = page.finals.map(corrected).flatMap(({ words }) => words);
console.log(JSON.stringify(words.map(({ text, speaker }) => [text, speaker ?? null])));
"""
Said = list[list[object]]


def streamd(*args: object) -> str:
    command = [sys.executable, "-m", "streamd", *map(str, args)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def on_page(feed: str, folder: Path) -> Said:
    (program := folder / "page.mjs").write_text(PAGE)
    node = [compute_driver_executable()[0], program, ROOT / "clients" / "web" / "transcript.js"]
    done = subprocess.run(node, input=feed, check=True, stdout=subprocess.PIPE, text=True)
    return msgspec.json.decode(done.stdout)


def in_json(path: Path) -> Said:
    segments = json.loads(path.read_text())["segments"]
    words = (word for segment in segments for word in segment["words"])
    return [[word["word"].strip(), word.get("speaker")] for word in words]


def from_journal(folder: Path) -> str:
    with Database(folder) as journals:
        hub = Hub("live", journal=journals.recall("live"))
        with hub.subscribe(0) as events:
            return "".join(f"{encode(event)}\n" for event in iter(events.pop, None))


@pytest.mark.parametrize("sound", [SPEECH, CONVERSATION], ids=["demo", "conversation"])
def test_each_reader_has_the_same_words_speakers_and_corrections(tmp_path, sound):
    if not sound.exists():
        pytest.skip("needs ../shared/data")
    live = [arg for name in FORMATS for arg in ("-o", tmp_path / f"live.{name}")]
    options = ("--fast", "--port=off", "-q", "--journal", tmp_path / "journal")
    feed = streamd("-m", "tiny.en", "--speakers", *options, *live, "--jsonl", sound)
    said = on_page(feed, tmp_path)
    assert len(said) > 100
    assert len({speaker for _, speaker in said}) > 1
    assert in_json(tmp_path / "live.json") == said
    assert on_page(from_journal(tmp_path / "journal"), tmp_path) == said

    meant = Correction(text="Corrected", seq=2, first=0, last=0)
    with Database(tmp_path / "journal") as journals:
        Hub("live", journal=journals.recall("live")).amend(meant)
    said = on_page(from_journal(tmp_path / "journal"), tmp_path)
    assert sum("Corrected" in str(word) for word, _ in said) == 1
    for name in FORMATS:
        file = tmp_path / f"export.{name}"
        streamd("export", "--journal", tmp_path / "journal", "-o", file, "live")
        assert "Corrected" in file.read_text()
    assert in_json(tmp_path / "export.json") == said
