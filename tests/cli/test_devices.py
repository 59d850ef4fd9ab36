from dataclasses import replace

import pytest

from streamd.cli import main
from streamd.cli.commands import device_table
from streamd.errors import SourceError
from streamd.sources.microphone import Device


def test_each_device_has_its_line_and_the_default_its_star():
    devices = [
        Device(index=0, name="Büro", host_api="ALSA", channels=1, rate_hz=44_100, default=False),
        Device(index=12, name="USB", host_api="JACK", channels=2, rate_hz=48_000, default=True),
    ]
    assert list(device_table(devices)) == [
        "   0  Büro  (ALSA, channels: 1, 44100 Hz)",
        "* 12  USB  (JACK, channels: 2, 48000 Hz)",
    ]


def test_what_the_computer_plays_is_a_device(monkeypatch):
    pulse = Device(
        index=1, name="pulse", host_api="ALSA", channels=32, rate_hz=44_100, default=True
    )
    monitor = "      monitor  (what this computer plays: streamd --device monitor)"
    assert list(device_table([pulse]))[1:] == [monitor]
    own = replace(pulse, index=2, name="Monitor of speakers")
    assert len(list(device_table([pulse, own]))) == 2  # which --device monitor takes


def test_no_device_is_an_error():
    with pytest.raises(SourceError, match="no microphone found"):
        list(device_table([]))


def test_without_a_microphone_no_model_is_asked_for(monkeypatch, capsys):
    monkeypatch.setattr("streamd.sources.microphone.list_devices", list)
    assert main(["--model", "none-such"]) == 3
    assert capsys.readouterr().err.startswith("streamd: no microphone found")
    assert main(["--model", "none-such", "talk.wav"]) == 4


def test_sharing_without_a_microphone_names_the_way_to_use_a_phones(monkeypatch, capsys):
    monkeypatch.setattr("streamd.sources.microphone.list_devices", list)
    assert main(["--share"]) == 3
    assert "streamd serve --sharing speak captions" in capsys.readouterr().err


def test_hotwords_that_took_the_name_of_the_file_are_said(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("streamd.sources.microphone.list_devices", list)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talk.wav").touch()
    assert main(["--model", "none-such", "--hotwords", "talk.wav"]) == 3
    assert "--hotwords took talk.wav for its words, so no file" in capsys.readouterr().err
