"""The programs in benchmarks/ run, and end with a line of JSON."""

import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import soundfile

from lab.latency import SpokenWord
from streamd.types import Hypothesis, Word
from streamd.whisper import recognizer
from tests.support import recorded

pytestmark = pytest.mark.benchmarks

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


def run(script: str, *args: str | Path) -> tuple[str, dict]:
    command = [sys.executable, BENCHMARKS / script, *args]
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=True
    )
    table, _, last = done.stdout.rstrip("\n").rpartition("\n")
    return table, json.loads(last)


def refusal(script: str, *args: str | Path) -> str:
    """What a program says that ends with an error of the user's."""
    command = [sys.executable, BENCHMARKS / script, *args]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def test_cues_that_break_a_limit_are_counted(tmp_path):
    (tmp_path / "a.srt").write_text(
        "1\n00:00:00,000 --> 00:00:01,000\nTwenty-one characters\n\n"
        "2\n00:00:02,000 --> 00:00:09,500\nNothing is wrong with\nthis one but its length.\n\n"
        "3\n00:00:09,540 --> 00:00:10,000\nThe\n\n"
    )
    table, told = run("subtitles.py", tmp_path / "a.srt")
    (counted,) = told["subtitles"].values()
    assert {what: n for what, n in counted.items() if n} == {
        "cues": 3,
        "over 20 characters/s": 1,
        "over 17 characters/s": 1,
        "under 5/6 s": 1,
        "over 7 s": 1,
        "line ends mid-phrase": 2,
        "cue ends mid-phrase": 1,
        "0 to 2 frames apart": 1,
        "too fast with room": 1,
    }
    assert "| over 7 s | 1 |" in table


def test_a_long_recording_of_joined_clips(tmp_path):
    clips = json.loads((ROOT / "tests/golden/clips.json").read_text())
    lines = [
        json.dumps({"path": str(ROOT / f"tests/golden/{name}.flac"), "text": text})
        for name, text in clips.items()
    ]
    (tmp_path / "clips.jsonl").write_text("\n".join(lines))
    table, told = run(
        *("recordings.py", tmp_path / "clips.jsonl", "--model", "tiny.en", "--weights", "none"),
        *("--minutes", "0.25", "--only", "streamd", "--keep", tmp_path / "kept"),
    )
    (row,) = told["recordings"]
    assert row["run"] == "streamd"
    assert row["words"] > row["deleted"]
    assert "| streamd |" in table
    reference = (tmp_path / "kept/reference.txt").read_text()
    assert sorted(reference.split()) == sorted(" ".join(clips.values()).split())


def test_streams_at_once_with_a_plot(tmp_path):
    plot = tmp_path / "load.svg"
    args = ["--streams", "1", "2", "--seconds", "3", "--clock", "cpu", "--all", "threads=1"]
    table, told = run("load.py", *args, "--plot", plot)
    assert [row["streams"] for row in told["load"]] == [1, 2]
    assert "held without missing" in table
    assert plot.read_text().startswith("<svg")


def speech(folder: Path) -> Path:
    """Recorded speech as `--data` has it: a clip, and a stream that is the same clip."""
    for name in ("streams", "audio"):
        (folder / name).mkdir(parents=True)
    sound, text = short_clip(folder / "audio")
    shutil.copy(sound, folder / "streams/S_short.flac")
    words = [[word, 0.3 * n, 0.3 * n + 0.3] for n, word in enumerate(text.split())]
    clip = {"id": "short", "lang": "en", "text": "He was not an ill disposed young man."}
    clip |= {"path": "audio/clip.flac", "ref_words": text, "words": words}
    german = clip | {"id": "kurz", "lang": "de"}
    manifest = "".join(f"{json.dumps(row)}\n" for row in (clip, german))
    (folder / "manifest.jsonl").write_text(manifest)
    stream = {"ref_words": text, "segments": [clip]}
    (folder / "streams/S_short.json").write_text(json.dumps(stream))
    return folder


def test_conversations_are_the_streams_with_turns_and_go_over_telephones(tmp_path):
    sounds = program("sounds")
    folder = speech(tmp_path / "conversations")
    about = json.loads((folder / "streams/S_short.json").read_text())
    turn = {"speaker": "ana", "start": 0.3, "end": 2.7}
    about["segments"] = [segment | turn for segment in about["segments"]]
    (folder / "streams/S_short.json").write_text(json.dumps(about))
    data = speech(tmp_path / "eval")  # without turns
    found = sounds.sets(["conversations", "telephone"], data, tmp_path)
    assert [[sound.name for sound in each] for each in found.values()] == [
        ["S_short"],
        ["S_short_g711", "S_short_gsm", "S_short_amr"],
    ]
    assert all(sound.turns and sound.path.exists() for each in found.values() for sound in each)


def short_clip(folder: Path) -> tuple[Path, str]:
    """Three seconds of the recording, and what is said in them."""
    recording = ROOT / "tests/speech/recording.flac"
    clip = json.loads(recording.with_suffix(".json").read_text())["clips"][1]
    samples, rate = soundfile.read(recording)
    begin, end = (ms * rate // 1000 for ms in (clip["start_ms"] - 300, clip["end_ms"] + 300))
    soundfile.write(folder / "clip.flac", samples[begin:end], rate)
    return folder / "clip.flac", clip["text"]


def test_both_precisions_on_a_page(tmp_path):
    page = tmp_path / "precision.md"
    data = speech(tmp_path / "data")
    table, told = run("precision.py", "-m", "box=tiny.en", "--data", data, "--page", page)
    (row,) = told["precision"]
    assert (row["model"], row["clips"], row["words"]) == ("box", 1, 8)
    assert max(row["float32"], row["int8"]) < 50
    assert min(row["float32_cpu_s"], row["int8_cpu_s"]) > 0
    text = page.read_text()
    assert text.strip() == table.strip()
    figures = (row[key] for key in ("float32", "int8", "float32_cpu_s", "int8_cpu_s"))
    line = " | ".join(map(str, ("box", 1, 8, row["differ"], *figures)))
    assert "| WER float32, % | WER int8, % | CPU s float32 | CPU s int8 |\n| --- " in text
    assert f"| {line} |" in text
    rows = text[text.index("## Every clip") :].splitlines()
    assert len([each for each in rows if each.startswith("| box")]) == row["differ"]


def test_runs_that_are_there_are_counted_and_not_done_again(tmp_path):
    out = tmp_path / "out"
    args = ["--data", speech(tmp_path / "data"), "--out", out, "--sounds", "clips", "S", "--runs"]
    table, told = run("quality.py", *args, "offline", "live")
    for name in ("clips", "S"):
        rows = told["sets"][name]
        assert all(float(rows[run]["WER %"]) < 50 for run in ("offline", "live"))
        assert (rows["live"]["taken back"], rows["live"]["unheard"]) == (0, 0)
    assert "## clips: 1 sounds, 4 s, 8 words" in table
    files = {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
    kept = sorted(path.relative_to(out / "tiny.en").as_posix() for path in files)
    names = ("S_short", "short")
    assert kept == [f"{run}/{name}.json" for run in ("live", "offline") for name in names]
    again, _ = run("quality.py", *args, "offline", "live")
    assert again == table
    assert {path: path.stat().st_mtime_ns for path in files} == files
    live = json.loads((out / "tiny.en/live/short.json").read_text())
    last = live["windows"][-1]
    assert "young man" in " ".join([last["prefix"], *(word[0] for word in last["words"])])
    assert [entry["t_ms"] for entry in live["said"]] == sorted(e["t_ms"] for e in live["said"])
    refused = refusal("quality.py", *args, "live:step=0")
    assert refused.endswith("live/short.json was made with other options: name the run anew\n")


def test_speech_that_is_not_there_is_told_in_one_line(tmp_path):
    refused = refusal("quality.py", "--data", tmp_path, "--sounds", "A")
    assert refused.count("\n") == 1
    assert "--data names the folder" in refused


def test_every_listener_gets_every_event_or_a_newer_one():
    _, told = run("load.py", "--subscribers", "3")
    (row,) = told["subscribers"]
    assert row["events"] + row["merged"] == 3 * 20
    assert row["events"] > 0


def test_crowds_cost_the_others_nothing_that_was_said():
    scenes = ["500 at once", "1000 come and go"]
    _, told = run("server.py", "--seconds", "1", "--only", *scenes)
    assert [(row["scene"], row["clients"]) for row in told["server"]] == [
        ("500 at once", 500),
        ("1000 come and go", 1000),
    ]
    for row in told["server"]:
        assert row["events"] > 0
        assert (row["holes"], row["cut_off"]) == (0, 0)
        assert row["after_mb"] < row["before_mb"] + 64


def test_floods_of_each_protocol_are_answered_beside_one_another():
    _, told = run("server.py", "--floods", "updates", "vLLM", "pings", "Wyoming", "--hostile", "2")
    assert [row["flood"] for row in told["floods"]] == ["updates", "vLLM", "pings", "Wyoming"]
    for row in told["floods"]:
        assert row["median_cpu_ms"] < 50
    assert told["server"] == []


def test_a_short_soak_loses_nothing():
    _, told = run("soak.py", "--minutes", "0.4", "--pace", "10", "--listeners", "2")
    row = told["soak"]
    assert (row["samples_sent"], row["samples_lost"], row["seq_holes"]) == (384_000, 0, 0)
    assert (row["gaps"], row["other_than_journal"], row["commit_violations"]) == (0, 0, 0)
    assert row["finals"] > 3


def program(name: str) -> ModuleType:
    """A program as a module."""
    if str(BENCHMARKS) not in sys.path:
        sys.path.append(str(BENCHMARKS))  # for what it imports; behind everything else
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_passages_that_differ_are_shown_with_their_neighbours():
    precision = program("precision")
    read = ("He was not an ill-disposed man, at 10", "he was not ill disposed man at ten or so")
    row = precision.Row(model="m", clip="c", said="", read=read, wrong=(0, 0))
    assert row.differs
    assert precision.passages(row) == ("not an ill / 0", "not ill / 0 or so")
    assert not precision.Row(model="m", clip="c", said="", read=("10", "ten"), wrong=()).differs


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    return program("peers")


def measured(model: str, step: float) -> dict:
    """A result in which streamd is so many times faster than everything else."""
    labels = ["whisper.cpp", "whisper.cpp, audio_ctx 384", "faster-whisper int8"]
    labels.append("whisper.cpp: encoder, 1500")
    row = {"ms": 10.0 * step, "best_ms": 9.0, "tokens": 20, "times_streamd": step}
    row |= {"cpu_ms": 20.0 * step, "times_streamd_cpu": step}
    return {
        "model": model,
        "table": {"streamd": {**row, "times_streamd": 1.0}} | dict.fromkeys(labels, row),
        "busy": {"streamd": 2.5},
        "memory_mb": {"streamd": 100, "whisper.cpp": 200},
        "warm_start_s": {"frame": 0.5},
    }


def test_the_bars_are_those_of_the_model(peers, capsys):
    assert len(peers.bars(measured("small.en", 6.0))) == 2
    peers.show(measured("base.en", 6.0))
    out = capsys.readouterr().out
    assert out.count("NOT MET") == 1  # 20 times whisper.cpp
    peers.show(measured("base.en", 3.0))
    assert capsys.readouterr().out.count("NOT MET") == 4


def test_both_builds_of_whisper_cpp_are_judged_if_both_were_measured(peers):
    result = measured("base.en", 6.0)
    theirs = {label: row for label, row in result["table"].items() if "whisper.cpp" in label}
    result["table"] |= {
        label.replace("whisper.cpp", "whisper.cpp native"): row | {"times_streamd": 3.0}
        for label, row in theirs.items()
    }
    reached = {what: times for what, times, *_ in peers.bars(result)}
    assert reached["encoder, against that of whisper.cpp, times"] == 6.0
    assert reached["encoder, against that of whisper.cpp native, times"] == 3.0
    assert len(reached) == 10


def test_a_worker_that_dies_is_named(peers, tmp_path):
    with pytest.raises(RuntimeError, match=r"streamd ended: .*nothing"):
        peers.Worker("streamd", tmp_path / "nothing", 1)


@pytest.fixture(scope="module")
def live_peers() -> ModuleType:
    return program("live_peers")


def test_a_word_is_late_until_it_is_shown_is_committed_and_is_in_a_final(live_peers):
    screens = [
        (1000, "", "", "hello"),
        (1500, "", "hello", " pig"),
        (2000, "", "hello", " big"),
        (2500, " hello big", "", ""),
    ]
    shown = tuple(live_peers.Shown(*screen) for screen in screens)
    played = live_peers.Played(shown=shown, cpu_s=1, memory_mb=1, lost_s=0, about="", load=0)
    words = (SpokenWord("hello", 500, 800), SpokenWord("big", 900, 1400), SpokenWord("end", 1, 2))
    sound = live_peers.Sound("", ROOT / "tests/speech/recording.flac", "hello big end", words)
    first, committed, final = live_peers.latencies(played, sound)
    assert first == pytest.approx([0.2, 0.6])
    assert committed == pytest.approx([0.7, 1.1])
    assert final == pytest.approx([1.7, 1.1])
    row = live_peers.score(played, sound)
    assert (row["S/D/I"], row["erased"], row["twice"]) == ("0/1/0", "0.50", 0)


def test_a_line_of_two_speakers_is_mixed_and_its_turns_are_late_until_it_is_complete(live_peers):
    screens = [
        (900, "", "", "hello"),
        (2000, "\nHello. Who", "", ""),
        (2500, "\nHello. Who is it?\nI", "", " am"),
        (3000, "\nHello. Who is it?\nI am.", "", ""),
        (3500, "\nHello. Who is it?\nI am.", "", "So"),
    ]
    shown = tuple(live_peers.Shown(*screen) for screen in screens)
    played = live_peers.Played(shown=shown, cpu_s=1, memory_mb=1, lost_s=0, about="", load=0)
    lines = live_peers.lines(played)
    assert lines == [(2500, "Hello. Who is it?"), (3000, "I am."), (3500, "So")]
    turn = program("sounds").Turn
    turns = (
        turn("ana", "Hello.", 0, 800),
        turn("ben", "Who is it?", 900, 2000),
        turn("ana", "I am. So.", 2100, 3200),
    )
    sound = live_peers.Sound("", Path(), "hello who is it i am so", turns=turns)
    told = live_peers.scores.dialogue([(sound, lines)])
    assert (told.turns, told.finals, told.mixed, told.lost) == (3, 3, 2, 0)
    assert told.ends_kept == "3 of 4"
    assert told.words_per_final == 2.3
    assert told.delay.startswith("500/")


def test_what_was_said_once_and_stands_there_twice_is_counted(live_peers):
    assert live_peers.n_twice("it was, it was the best best", "it was the best") == 3
    assert live_peers.n_twice("no no it was", "no no it was") == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_programs_that_hear_nobody_run_no_encoder():
    table, told = run("idle.py", "--seconds", "1")
    assert [row["hears"] for row in told["idle"]] == [
        "nothing (serve)",
        "digital silence",
        "quiet noise",
    ]
    assert not any(row["windows"] for row in told["idle"])
    assert told["idle"][0]["heard_s"] == 0 < told["idle"][1]["heard_s"]
    assert table.count("never ran") == 3


@pytest.mark.coreml
def test_what_building_for_core_ml_costs():
    pytest.importorskip("coremltools")
    table, told = run("coreml_build.py", "--dims", "tiny")
    (row,) = told["builds"]
    assert (row["bits"], row["functions"]) == (16, 3)
    assert row["packages_mb"]["encoder.mlpackage"] < row["disk_mb"] < row["peak_mb"]
    assert "| tiny | 16 |" in table


def test_what_nats_costs():
    table, told = run("cluster.py", "--seconds", "2", "--speakers", "1")
    assert "on NATS, another node" in table
    assert [row["process"] for row in told["cost"]["on NATS"]][-1] == "NATS"


@pytest.mark.timeout(400)  # it starts six nodes, one after the other
def test_how_far_a_cluster_carries(tmp_path):
    options = ("--seconds", "1", "--nodes", "1", "--sessions", "12", "--minutes", "0.3")
    table, told = run("cluster.py", "--scale", *options)
    assert "sessions opened" in table
    assert told["open"]["1 nodes"]["a second"] > 0
    assert told["final"]["1 nodes"]["a second"] > 0
    assert told["memory"]
    (tmp_path / "measured").write_text(json.dumps(told))
    table, computed = run("thousand_nodes.py", tmp_path / "measured")
    assert computed["simulated"][-1]["nodes"] == 1000
    assert "leases busy %" in table


def test_how_many_single_words_have_no_text(tmp_path):
    clip = {"path": str(recorded.RECORDING), "text": "", "speaker": "x"}
    rows = [
        {**clip, "words": [(word, start_ms / 1000, end_ms / 1000)]}
        for word, (start_ms, end_ms) in recorded.WORDS_MS.items()
    ]
    (tmp_path / "manifest.jsonl").write_text("\n".join(map(json.dumps, rows)))
    half = "judge" if zlib.crc32(b"x") % 2 == 0 else "design"
    table, told = run(
        *("words.py", "--data", tmp_path, "--half", half, "--most", "2"),
        *("--out", tmp_path / "out"),
    )
    assert [(row["run"], row["set"].split("-")[0]) for row in told["words"]] == [
        ("live", "cut"),
        ("offline", "cut"),
    ]
    assert all((row["words"], row["lost"]) == (2, 0) for row in told["words"])
    assert "| live | cut" in table


def test_a_number_carries_its_alternatives_until_somebody_asks():
    carried = program("alternatives")

    def differing(ask, value=10):
        survey = carried.Survey()
        ask(carried.Varied(value, {"half": value / 2, "double": value * 2}, survey))
        return survey.here

    assert differing(lambda n: n > 4) == set()
    assert differing(lambda n: n > 5) == {"half"}
    assert differing(lambda n: 3 * n - 1 > 40) == {"double"}
    assert differing(lambda n: math.ceil(n / 15) == 1) == {"double"}
    assert differing(lambda n: np.float32(7) + n < 16) == {"half"}
    assert differing(lambda n: np.array([1.0, 12.0]) > n) == {"double"}
    assert differing(lambda n: n in (10, 20)) == {"half", "double"}
    for escape in (range, np.zeros, "abc".__mul__, hash, str, math.exp, lambda n: (1, 2)[:n]):
        assert differing(lambda n, escape=escape: [escape(n)]) == {"half", "double"}


def test_leaving_out_goes_on_where_it_ended_and_finds_what_alters_a_final(tmp_path):
    lone = program("leave_one_out")
    changes = [each for each in lone.every_change() if each.kind in ("rules", "session", "gate")]
    assert len(changes) > 100
    sound = lone.Sound("lamp", ROOT / "tests/golden/lamp.flac", reference="the lamp")
    rows = tmp_path / "new/rows.jsonl"
    lone.play(rows, "tiny.en", [sound], changes, most_sounds=0)
    before = lone.read(rows)
    assert [row.change for row in before] == [change.name for change in changes]
    assert not any(row.played for row in before)
    lone.play(rows, "tiny.en", [sound], changes)
    after = lone.read(rows)
    assert after[: len(before)] == before
    may_differ = {row.change for row in before if row.differs}
    assert {row.change for row in after[len(before) :]} == may_differ
    altered = [row for row in after if row.altered]
    assert altered
    table = lone.summary(after, "tiny.en")
    assert all(f"| {row.kind}: {row.change} |" in table for row in altered)


def test_what_a_survey_takes_for_the_same_is_the_same():
    lone = program("leave_one_out")
    config = lone.load({"model": "tiny.en", "language": "en", "threads": "1"}, {})
    opened = lone.open_model(config, wait=True)
    sound = lone.Sound("lamp", ROOT / "tests/golden/lamp.flac", reference="the lamp")
    usual = lone.Usual(
        sound,
        config,
        lambda config: lone.build.answering(lone.build.recognizer(config, *opened)).recognize,
    )
    same = [each for each in lone.every_change() if not usual.surveyed("x", each).differs]
    assert len(same) > 100
    played = [usual.row("x", each) for each in same]
    assert not [row.change for row in played if row.shown or row.altered or row.error]


def test_what_is_known_of_a_sound_is_decoded_again_only_where_a_number_decides(tmp_path):
    lone = program("leave_one_out")
    sound = lone.Sound("lamp", ROOT / "tests/golden/lamp.flac", reference="the lamp")
    decoded = []

    def new(config):
        def recognize(window):
            decoded.append(window)
            text = " lamp" if recognizer._SPARE_TOKENS > 6 else " lamb"
            return Hypothesis(words=(Word(text, window.start, window.end, 1.0),), tokens=(1,))

        return recognize

    usual = lone.Usual(sound, lone.load({}, {}), new)
    n_windows = len(decoded)
    assert n_windows > 2
    same, other = (
        lone._with_number(f"streamd.whisper.recognizer:_SPARE_TOKENS={n}") for n in (16, 4)
    )
    assert not usual.row("x", same).shown
    assert len(decoded) == n_windows
    assert usual.row("x", other).altered
    assert len(decoded) == 2 * n_windows


def test_when_turns_end_and_how_soon_it_is_told(tmp_path):
    text = json.loads((ROOT / "tests/golden/clips.json").read_text())["lamp"]
    seconds = soundfile.info(ROOT / "tests/golden/lamp.flac").duration
    words = [(word, 0.3, seconds - 0.2) for word in text.split()]
    clip = {"id": "lamp", "path": str(ROOT / "tests/golden/lamp.flac"), "lang": "en"}
    row = json.dumps({**clip, "text": text, "words": words})
    (tmp_path / "manifest.jsonl").write_text(row)
    table, told = run(
        *("turns.py", "ends", "--data", tmp_path, "--sounds", "clips", "--out", tmp_path / "out")
    )
    assert told["ends"]["clips"]["turns"] == 1
    by_rule = {(row["rule"], row["setting"]): row for row in told["ends"]["clips"]["rules"]}
    assert by_rule["silence alone", "1500 ms"]["median_ms"] == 1500
    assert by_rule["silence alone", "1500 ms"]["early"] == 0
    assert by_rule["silence alone", "1500 ms"]["unheard"] == 0
    assert "| smart-turn alone | 0.5 |" in table
    table, told = run("turns.py", "times", "--data", tmp_path, "--streams", "1")
    by_kind = {row["what"]: row for row in told["times"]}
    assert by_kind["answer"]["n"] == 1
    assert 0 < by_kind["answer"]["ms"][0] < 10_000
    assert by_kind["word shown"]["n"] > len(words) / 2


def test_every_number_that_is_varied_is_there(tmp_path):
    sensitivity = program("sensitivity")
    for number in sensitivity.NUMBERS:
        for value in number.values:
            run_ = sensitivity.Run(number.spec(value), "tiny.en", tmp_path)
            run_._opened = ("a model", "an engine")
            with number.patched(value):
                assert run_._open()[1:] == ("a model", "an engine")


def test_what_damaged_gguf_files_do():
    pytest.importorskip("transcribe_cpp")
    table, told = run("damaged_gguf.py", "--count", "20")
    counted = told["damaged"]
    assert len(counted) == 10
    assert sum(sum(each.values()) for each in counted.values()) == 20
    assert counted["counts in the header"] == {"refused": 2}
    assert "| all | 20 |" in table


@pytest.mark.skipif(
    not (Path(os.environ.get("STREAMD_TEST_MODELS", "")) / ".translate/en-pt").is_dir(),
    reason="needs translations: make test-real",
)
def test_how_good_and_how_late_translations_are(tmp_path, monkeypatch):
    monkeypatch.setenv("STREAMD_STORE", os.environ["STREAMD_TEST_MODELS"])
    data = speech(tmp_path / "eval")
    texts = tmp_path / "texts.jsonl"
    rows = [{"text": "We saw Cape Town in 1998."}, {"lang": "de", "text": "Um 8 Uhr."}]
    texts.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command = ("--data", data, "--sounds", "S", "--out", tmp_path / "out", "--texts", texts)
    table, told = run("translation.py", *command)
    assert told["kept"] == {
        "texts": 1,
        "texts with numbers": 1,
        "of these with the same numbers": 1,
        "names": 1,
        "names kept": 0,
        "names kept if listed": 1,
    }
    into, back = told["translation"]
    assert (into["direction"], back["direction"]) == ("en-pt", "pt-en")
    assert into["live"] > 50
    assert 0 <= into["share"] < 1
    assert "chrF live" in table
