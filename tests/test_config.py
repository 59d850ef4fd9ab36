"""Options are read alike from everywhere, and refused in words that help."""

import json
import os
import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

import msgspec
import pytest
import tomlkit
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import inspect

from docs.make import options_page
from streamd.config import (
    OPTIONS,
    SECTIONS,
    SETTINGS,
    Config,
    as_toml,
    load,
    of_options,
    value_of,
    without_source,
)
from streamd.config.removed import REMOVED, successor
from streamd.config.table import Field
from streamd.errors import ConfigError
from streamd.options import FRAME_MS, Option, without_password
from streamd.sinks.formats import FORMATS, suffix
from streamd.sinks.whole import DOCUMENTS
from streamd.sources.framing import ENCODINGS, MAX_RATE_HZ, MIN_RATE_HZ
from streamd.sources.stdin import AUTO

ROOT = Path(__file__).parents[1]


FIELDS = {**OPTIONS, **SETTINGS}
"""All that can be chosen, by the names that people use."""


def values(field: Field) -> st.SearchStrategy:
    """All values that a field may have, as they are written."""
    if isinstance(field.type, inspect.VarTupleType):
        return st.lists(values_of(field.type.item_type), max_size=3)
    quantum = FRAME_MS if field.in_frames else 1  # other times are rounded up
    some = st.sampled_from(field.choices) if field.choices else values_of(field.type, quantum)
    return st.just(field.opt.unset) | some if field.is_optional else some


def values_of(kind: inspect.Type, n: int = 1) -> st.SearchStrategy:
    match kind:
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType(ge=low, le=high):
            return st.integers(-(-low // n), (high or 60_000) // n).map(lambda count: count * n)
        case inspect.FloatType(ge=low, le=high):
            return st.floats(low, high)
        case inspect.StrType(pattern=str(pattern)):
            # What is secret is not printed, so it does not read back.
            return st.from_regex(pattern, fullmatch=True).filter(
                lambda text: without_password(text) == text
            )
        case inspect.StrType(min_length=least):
            text = st.characters(exclude_categories=["Cs"], exclude_characters="@")  # a password's
            return st.text(text, min_size=least or 0, max_size=10)
        case inspect.LiteralType(values=choices):
            return st.sampled_from(choices)
    raise AssertionError(kind)


def possible(chosen: Mapping[str, object]) -> bool:
    """Whether the values are allowed in combination."""
    every = {name: field.written(field.default) for name, field in FIELDS.items()} | chosen
    fits = every["step"] == "auto" or every["step"] <= every["length"]
    shared = every["sharing"] == "off" or every["port"] != "off"
    played = every["realtime"] or not every["play"]
    heard = every["device"] not in ("cuda", "cpu", "mps")
    told_apart = every["channels"] != "split" or not (
        every["speakers"] or every["num-speakers"] or every["people"]
    )
    return fits and shared and played and heard and told_apart


settings = (
    st.sets(st.sampled_from(sorted(FIELDS)), max_size=8)
    .flatmap(lambda names: st.fixed_dictionaries({name: values(FIELDS[name]) for name in names}))
    .filter(possible)
)
"""Some options and settings, and a value for each."""


def as_text(value: object) -> str:
    """A value as a person would write it in a variable."""
    if isinstance(value, list):
        return ",".join(map(as_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_given(chosen: Mapping[str, object]) -> dict[str, str | list[str]]:
    """Values as the command line hands them over."""
    given: dict[str, str | list[str]] = {
        name: list(value) if OPTIONS[name].repeats else as_text(value)
        for name, value in chosen.items()
        if name in OPTIONS
    }
    pairs = [f"{name}={as_text(value)}" for name, value in chosen.items() if name in SETTINGS]
    return {**given, **({"set": pairs} if pairs else {})}


def effective(config: Config) -> dict[str, object]:
    """The value of each field as it is written, lists as lists."""
    written = {name: field.written(value_of(config, field)) for name, field in FIELDS.items()}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in written.items()}


def expected_of(chosen: Mapping[str, object]) -> dict[str, object]:
    """The value of each field if these are chosen."""
    every = effective(Config()) | chosen
    implied = every["num-speakers"] > 0 or every["people"] != ""
    return every | {"speakers": every["speakers"] or implied}


@pytest.fixture
def toml(tmp_path):
    """Writes a configuration file, returns its path."""

    def write(content: str) -> str:
        path = tmp_path / "streamd.toml"
        path.write_text(content, encoding="utf-8")
        return str(path)

    return write


def test_nothing_said_means_the_defaults():
    assert load({}, {}) == Config()


def test_names_and_variables_are_unique():
    flags = [flag for option in OPTIONS.values() for flag in option.every_flag]
    assert len(set(flags)) == len(flags)
    assert len([option for option in OPTIONS.values() if option.flags]) <= 60
    assert len(SETTINGS) <= 40
    paths = [(field.part, field.attribute) for field in FIELDS.values()]
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_made_of_what_its_types_say(name):
    """No tool checks the types of what stands in an `Annotated`."""
    option = OPTIONS[name].opt
    assert msgspec.convert(msgspec.to_builtins(option), Option) == option


def test_options_are_sorted_by_section():
    """The help and the reference show each section once."""
    sections = [section for section, _ in groupby(OPTIONS.values(), lambda each: each.section)]
    assert sections == list(SECTIONS)


def test_defaults_are_allowed():
    for name, field in FIELDS.items():
        assert field.read(field.written(field.default), name, typed=True) == field.default


@given(chosen=settings)
def test_printed_configuration_reads_back_equal(chosen, tmp_path_factory):
    config = load(as_given(chosen), {})
    assert effective(config) == expected_of(chosen)
    path = tmp_path_factory.getbasetemp() / "printed.toml"
    path.write_text(as_toml(config), encoding="utf-8")
    assert load({}, {}, config_file=str(path)) == config


@pytest.mark.parametrize(
    ("bus", "shown"),
    [
        ("nats://user:password@host", "nats://user:***@host"),
        ("user:password@host", "user:***@host"),
        ("nats://a:pass@word@b:4222,tls://c:pass/word@d", "nats://a:***@b:4222,tls://c:***@d"),
        ("nats://token@host", "nats://***@host"),
        ("nats://a:4222,nats://b:4222", "nats://a:4222,nats://b:4222"),
        ("", ""),
    ],
)
def test_no_password_of_the_bus_is_printed(bus, shown):
    config = load({"bus": bus}, {})
    assert config.journal.bus == bus
    assert f'\nbus = "{shown}"\n' in as_toml(config)


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("https://joe:pass:wo@rd@host/talk.mp3?at=a@b", "https://joe:***@host/talk.mp3?at=a@b"),
        ("RTSP://token@host:554/", "RTSP://***@host:554/"),
        ("https://host/a@b.mp3", "https://host/a@b.mp3"),
        ("joe:talk@home.wav", "joe:talk@home.wav"),
    ],
)
def test_no_password_of_an_input_is_printed(file, shown):
    config = load({"files": ["-", file]}, {})
    assert config.input.files == ("-", file)
    assert f'files = ["-","{shown}"]' in as_toml(config)


def test_name_that_is_no_text_cannot_be_printed():
    config = load({"files": [os.fsdecode(b"caf\xe9.wav")]}, {})
    with pytest.raises(ConfigError, match=r"not UTF-8, so no TOML file can hold it: '\\udce9'"):
        as_toml(config)


@given(in_file=settings, in_environment=settings, given_=settings)
def test_command_line_beats_environment_beats_file(
    in_file, in_environment, given_, tmp_path_factory
):
    in_environment = {name: value for name, value in in_environment.items() if fits(name, value)}
    expected = in_file | in_environment | given_
    assume(possible(expected))
    sections: dict[str, dict[str, object]] = {}
    for name, value in in_file.items():
        section = OPTIONS[name].section if name in OPTIONS else "set"
        sections.setdefault(section, {})[name] = value
    path = tmp_path_factory.getbasetemp() / "lowest.toml"
    path.write_text(tomlkit.dumps(sections))
    environ = {
        OPTIONS[name].variable: as_text(value)
        for name, value in in_environment.items()
        if name in OPTIONS
    }
    environ["STREAMD_SET"] = " ".join(
        f"{name}={as_text(value)}" for name, value in in_environment.items() if name in SETTINGS
    )
    environ["STREAMD_CONFIG"] = str(path)
    config = load(as_given(given_), environ)
    assert effective(config) == expected_of(expected)


def fits(name: str, value: object) -> bool:
    """Whether a variable can hold the value: it has no empty texts, and no commas inside a list.

    A text of STREAMD_SET has no blanks.
    """
    parts = value if isinstance(value, list) else [value]
    texts = [as_text(part) for part in parts]
    is_list = isinstance(FIELDS[name].type, inspect.VarTupleType)
    if name in SETTINGS and any(text.split() != [text] for text in texts):
        return False
    return bool(texts) and all(texts) and not (is_list and "," in "".join(texts))


def test_flag_for_the_file_beats_the_variable(toml, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text("[streaming]\nstep = 1000\n")
    path = toml("[streaming]\nstep = 700\n")
    assert load({}, {"STREAMD_CONFIG": str(other)}, config_file=path).session.step == 35


def test_empty_variable_is_not_set():
    assert load({}, {"STREAMD_STEP": "", "STREAMD_CONFIG": ""}) == Config()


@pytest.mark.parametrize(
    ("ms", "frames"), [("0", 0), ("1", 1), ("250", 13), ("500", 25), ("501", 26), ("5000", 250)]
)
def test_a_time_is_rounded_up_to_frames(ms, frames):
    """So that no step is taken for --step 0, which stands for whole utterances."""
    assert load({"step": ms}, {}).session.step == frames


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("step", "-1", "must be a whole number of ms from 0 to 30000, or auto, got -1"),
        ("step", "half", "must be a whole number of ms from 0 to 30000, or auto, got half"),
        ("step", "1\n2", r'must be a whole number of ms from 0 to 30000, or auto, got "1\n2"'),
        ("endpoint-ms", "", 'must be a whole number of ms from 0 to 30000, got ""'),
        ("beam-size", "0", "must be a whole number from 1 to 32, got 0"),
        ("vad", "ten", "must be silero, webrtc or off, got ten"),
        ("language", "inglish", "must be auto or languages: german, de, en,es, got inglish"),
        ("speakers", "maybe", "must be true or false, got maybe"),
    ],
)
def test_impossible_value_is_refused_wherever_it_comes_from(name, text, complaint, toml):
    option = OPTIONS[name]
    with pytest.raises(ConfigError) as from_flag:
        load({name: text}, {})
    assert str(from_flag.value) == f"--{name} {complaint}"
    if text:
        with pytest.raises(ConfigError) as from_variable:
            load({}, {option.variable: text})
        assert str(from_variable.value) == f"{option.variable} {complaint}"
    path = toml(f"[{option.section}]\n{name} = {json.dumps(text)}\n")
    with pytest.raises(ConfigError) as from_file:
        load({}, {}, config_file=path)
    assert str(from_file.value).startswith(f"{path}: {option.section}.{name} must be ")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[vad]\nendpoint_ms = 1", "unknown key endpoint_ms in [vad]; did you mean endpoint-ms?"),
        ("[vad]\nfloor-db = 1", "floor-db in [vad] is now gate.floor_db in [set]"),
        ("[vad]\nfloor_db = 1", "floor_db in [vad] is now gate.floor_db in [set]"),
        (
            "[dictation]\npush-to-talk = false",
            "push-to-talk in [dictation] is now dictation.push_to_talk in [set]",
        ),
        ("[server]\nallow_host = ['x']", "allow_host in [server] is gone: use --allow NAME"),
        (
            "[set]\nsession.backlog = 1",
            "set.session.backlog: no such setting; did you mean session.b",
        ),
        (
            "[set]\nsearch.beam_size = 1",
            "set.search.beam_size: has an option of its own, --beam",
        ),
        (
            "[set]\n'endpoint.longest_ms' = 1",
            "set.endpoint.longest_ms must be a whole number of ms from 1000",
        ),
        ("[set]\nendpoint.longest_ms = 20.5", "set.endpoint.longest_ms must be a whole"),
        ("[streaming]\nxyzzy = 1", "unknown key xyzzy in [streaming]"),
        ("[vad]\nstep = 500", "unknown key step in [vad]; step belongs in [streaming]"),
        ("[streeming]\nstep = 500", "unknown section [streeming]; did you mean streaming?"),
        ("step = 500", "key step stands outside any section; step belongs in [streaming]"),
        ("[streaming]\nstep = '500'", "streaming.step must be a whole number of ms"),
        ("[streaming]\nstep = true", "streaming.step must be a whole number of ms"),
        ("[streaming]\nstep = 2020-01-01", "streaming.step must be a whole number of ms"),
        ("[output]\noutput = 'a.doc'", "output.output must be FILE.txt, .md, .srt, .vtt, "),
        ("[output]\noutput = ['a.doc']", "output.output must be FILE.txt, .md, .srt, .vtt, "),
        ("step 500", "not a TOML file: "),
    ],
)
def test_wrong_file_is_refused(content, complaint, toml):
    path = toml(content)
    with pytest.raises(ConfigError) as error:
        load({}, {}, config_file=path)
    assert str(error.value).startswith(f"{path}: {complaint}")
    assert "\n" not in str(error.value)


def test_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"\xff\x00")
    with pytest.raises(ConfigError, match="not a TOML file"):
        load({}, {}, config_file=str(path))


def test_a_list_of_one_may_be_a_text_in_the_file(toml):
    path = toml("[server]\nallow = 'a.example'\n[output]\noutput = 'one, two.srt'\n")
    config = load({}, {}, config_file=path)
    assert config.bind.allow == ("a.example",)
    assert config.output.output == ("one, two.srt",)


@pytest.mark.parametrize("name", ["library", "journal", "record"])
def test_folders_for_what_is_kept_can_be_off(name, toml):
    path = toml(f"[journal]\n{name} = 'off'\n")
    off = [load({name: "off"}, {}), load({}, {}, config_file=path)]
    assert [value_of(config, OPTIONS[name]) for config in off] == [None, None]
    assert f'{name} = "off"\n' in as_toml(off[0])


def test_a_number_is_no_folder_to_keep_sessions_in():
    with pytest.raises(ConfigError) as error:  # as whisper.cpp's --keep, in ms
        load({"library": "200"}, {})
    assert str(error.value) == (
        "--library must be auto or a folder, such as ./talks, or off, got 200"
    )
    assert load({"library": "./200"}, {}).journal.keep == "./200"


def test_unreadable_file_names_who_asked_for_it(tmp_path):
    with pytest.raises(ConfigError, match=r"^--config: cannot read .*/none: No such file"):
        load({}, {}, config_file=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"^STREAMD_CONFIG: cannot read .*: Is a directory"):
        load({}, {"STREAMD_CONFIG": str(tmp_path)})


def test_misspelt_variable_is_refused_and_a_foreign_one_ignored():
    with pytest.raises(ConfigError, match=r"STREAMD_STPE; did you mean STREAMD_STEP\?"):
        load({}, {"STREAMD_STPE": "500"})
    foreign = {"STREAMD_SERVICE_HOST": "10.0.0.1", "STREAMD_REQUIRE_SYSTEM": "1", "STEP": "40"}
    assert load({}, foreign) == Config()


def test_window_holds_at_least_a_step():
    with pytest.raises(
        ConfigError, match=r"--length \(400 ms\) must be at least --step \(500 ms\)"
    ):
        load({"length": "400"}, {})
    with pytest.raises(ConfigError, match=r"--length \(8000 ms\) must be at least STREAMD_STEP"):
        load({}, {"STREAMD_STEP": "11000"})


def test_a_server_for_clients_has_no_source_of_its_own():
    config = load({"port": "0"}, {})
    assert not without_source(config).input.source
    with pytest.raises(ConfigError, match="without a server there are no clients"):
        without_source(load({}, {"STREAMD_PORT": "off"}))


@pytest.mark.parametrize("name", REMOVED)
def test_who_uses_what_is_gone_is_told_what_to_do_wherever_it_stands(name, toml):
    said = f"{re.escape(name)}.* is gone: {re.escape(REMOVED[name])}$"
    assert name not in FIELDS
    with pytest.raises(ConfigError, match=said):
        of_options({name: 1})
    section = "set" if "." in name else "streaming"
    with pytest.raises(ConfigError, match=said):
        load({}, {}, config_file=toml(f'[{section}]\n"{name}" = 7\n'))
    if "." in name:
        with pytest.raises(ConfigError, match=f"^--set {said}"):
            load({"set": [f"{name}=1"]}, {})
    else:
        variable = f"STREAMD_{name.upper().replace('-', '_')}"
        with pytest.raises(ConfigError, match=f"^{variable} is gone: {re.escape(REMOVED[name])}$"):
            load({}, {variable: "1"})


@pytest.mark.parametrize(
    "setting",
    ["decoding.temperature", "search.audio_ctx", "session.keep_context", "vad.pre_roll_ms"],
)
def test_what_is_gone_is_known_by_its_setting_too(setting):
    name = setting.partition(".")[2].replace("_", "-")
    with pytest.raises(ConfigError) as error:
        load({"set": [f"{setting}=1"]}, {})
    assert str(error.value) == f"--set {setting} is gone: {REMOVED[name]}"


def test_all_that_is_wrong_with_a_file_is_said_at_once(toml):
    path = toml(
        "[streaming]\nkeep = 300\n[decoding]\nworkers = 2\nxyzzy = 1\n"
        '[output]\nbuild-to = "/srv"\n[set]\nxyzzy = 2\n'
    )
    with pytest.raises(ConfigError) as error:
        load({}, {}, config_file=path)
    assert str(error.value) == (
        f"{path}: keep in [streaming] is gone: {REMOVED['keep']}. "
        "workers in [decoding] is now decoding.workers in [set]. "
        "unknown key xyzzy in [decoding]. "
        f"build-to in [output] is gone: {REMOVED['build-to']}. "
        "set.xyzzy: no such setting; streamd --set help lists them"
    )


def test_what_is_to_be_done_instead_of_what_is_gone_can_be_done():
    instead = " ".join(REMOVED.values())
    settings = re.findall(r"--set ([a-z_.]+)=?", instead)
    assert len(settings) >= 3
    assert set(settings) <= set(SETTINGS)
    flags = {flag for option in OPTIONS.values() for flag in option.every_flag} | {"--set"}
    assert set(re.findall(r"--[a-z][a-z-]+", instead)) <= flags


def test_a_number_of_speakers_has_them_told_apart():
    assert load({"num-speakers": "2"}, {}).decoding.speakers
    assert not load({}, {}).decoding.speakers
    with pytest.raises(ConfigError, match="--channels: each channel is a speaker; drop --num-spe"):
        load({"num-speakers": "2", "channels": "split"}, {})


def test_choices_are_what_the_parts_know():
    assert set(OPTIONS["input-format"].choices) == {AUTO, *ENCODINGS}
    rates = f"a whole number of Hz from {MIN_RATE_HZ} to {MAX_RATE_HZ}"
    assert OPTIONS["input-rate"].allowed == rates
    endings, _, _ = OPTIONS["output"].allowed.removeprefix("FILE").partition(";")
    suffixes = endings.replace("or", ",").split(",")
    assert {ending.strip() for ending in suffixes} == {*map(suffix, (*FORMATS, *DOCUMENTS))}
    assert set(OPTIONS["output-format"].type.item_type.values) == {"all", *FORMATS, *DOCUMENTS}
    assert set(OPTIONS["format"].choices) == {*FORMATS}


def test_nothing_that_can_be_chosen_is_without_effect():
    code = "".join(
        path.read_text()
        for path in (ROOT / "streamd").rglob("*.py")
        if path.parent.name != "config"
    )
    unread = [
        name for name, field in FIELDS.items() if not re.search(rf"\.{field.attribute}\b", code)
    ]
    assert unread == []


@pytest.mark.parametrize(
    ("pair", "complaint"),
    [
        ("gate.floor_db", "--set must be NAME=VALUE, got gate.floor_db"),
        ("gate.flor_db=9", "--set gate.flor_db: no such setting; did you mean gate.floor_db?"),
        ("step=500", "--set step: no such setting"),
        ("session.step_ms=500", "--set session.step_ms: has an option of its own, --step"),
        ("bind.token=x", "--set bind.token: no such setting"),
        (
            "gate.floor_db=3",
            "--set gate.floor_db must be a number of dBFS from -200.0 to 0.0",
        ),
        (
            "search.temperatures=0,2",
            "--set search.temperatures must be numbers from 0.0 to 1.0, separated by commas",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_refused(pair, complaint):
    with pytest.raises(ConfigError) as error:
        load({"set": [pair]}, {})
    assert str(error.value).startswith(complaint)


def test_of_a_setting_given_twice_the_last_one_counts():
    pairs = ["endpoint.pre_final_ms=100", "endpoint.pre_final_ms=219"]
    assert load({"set": pairs}, {}).endpoint.pre_final == 11


def test_a_setting_that_is_taken_for_an_option_is_named():
    with pytest.raises(ConfigError, match=r"^STREAMD_OPEN_SHARE is now STREAMD_SET=gate\.open"):
        load({}, {"STREAMD_OPEN_SHARE": "0.5"})
    with pytest.raises(ConfigError, match=r"^option open_share is now gate\.open_share"):
        of_options({"open_share": 0.5})
    assert successor("least-evidence") == "search.least_evidence"
    assert successor("endpoint-pre-final-ms") == "endpoint.pre_final_ms"
    assert successor("engine-deadline-ms") == "decoding.engine_deadline_ms"
    assert successor("xyzzy") == ""
    assert not any(successor(name) for name in OPTIONS)


def test_reference_is_current():
    text = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert text == options_page(), "run: make docs"


def test_reference_has_everything():
    page = options_page()
    assert len(page.split()) < 2_250
    for option in OPTIONS.values():
        for flag in (*option.shown_flags, *option.opt.values):
            assert f"`{flag}`" in page
    for name in SETTINGS:
        assert f"`{name}` `" in page
