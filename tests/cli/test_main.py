"""From words to a configuration, an exit code and one line on stderr."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest

import streamd
from streamd.cli import main
from streamd.cli.arguments import Command
from streamd.cli.commands import COMMANDS
from streamd.config import OPTIONS, SECTIONS, Config, as_toml
from streamd.errors import BindError, ConfigError, EngineError, ModelError, SourceError
from streamd.language import LANGUAGE_CODES, LANGUAGES

ROOT = Path(__file__).parents[2]
NAMES = [command.name for command in COMMANDS]


@dataclass
class Runner:
    """Stands in for what a command does, and remembers what it was asked for."""

    calls: list[tuple[Config, tuple[str, ...]]] = field(default_factory=list)
    failure: BaseException | None = None
    code: int = 0

    def __call__(self, config: Config, operands: tuple[str, ...]) -> int:
        self.calls.append((config, operands))
        if self.failure:
            raise self.failure
        return self.code


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith("STREAMD_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(monkeypatch):
    """Runs the program; the runners of its commands are in `run.runners`."""

    def run(*argv: str) -> int:
        return main(argv)

    run.runners = {name: Runner() for name in NAMES}

    def call(command: Command, config: Config, operands: tuple[str, ...]) -> int:
        return run.runners[command.name](config, operands)

    monkeypatch.setattr("streamd.cli.commands.call", call)
    return run


def config_of(run, *argv: str, command: str = "") -> Config:
    assert run(*argv) == 0
    ((config, _),) = run.runners[command].calls
    return config


def complaint(run, capsys, *argv: str) -> str:
    """What the program says about a wrong command line."""
    assert run(*argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("streamd: ")
    assert err.count("\n") == 1
    assert not any(runner.calls for runner in run.runners.values())
    return err.removeprefix("streamd: ").rstrip("\n")


def test_bare_command_is_live_captions_with_the_defaults(run):
    assert config_of(run) == Config()


def test_whisper_cpp_names_work(run):
    words = "--step 500 --length 5000 -c 1 -m base.en -l de -t 4 -bs 5 -tr"
    config = config_of(run, *words.split())
    session, decoding = config.session, config.decoding
    assert (session.step, session.length) == (25, 250)
    assert (config.input.device, decoding.model, decoding.language) == ("1", "base.en", "de")
    assert (decoding.threads, config.search.beam_size) == (4, 5)
    assert decoding.task == "translate"


def test_set_reaches_what_has_no_option(run):
    config = config_of(
        run, "--set", "gate.floor_db=-50", "--set=search.temperatures=0,0.5", "a.wav"
    )
    assert config.gate.floor_db == -50
    assert config.search.temperatures == (0.0, 0.5)
    assert config.input.files == ("a.wav",)


@pytest.mark.parametrize(
    ("words", "verbose"),
    [
        ("", 0),
        ("-v", 1),
        ("-vv", 2),
        ("--verbose 2", 2),
        ("-vv -v", 1),
        ("-q", -1),
        ("--quiet", -1),
    ],
)
def test_verbosity(words, verbose, run):
    assert config_of(run, *words.split()).output.verbose == verbose


def test_switches_go_both_ways(run, monkeypatch):
    monkeypatch.setenv("STREAMD_REALTIME", "false")
    monkeypatch.setenv("STREAMD_SPEAKERS", "true")
    config = config_of(run, "--realtime", "--no-speakers")
    assert config.input.realtime
    assert not config.decoding.speakers


def test_files_stand_anywhere_and_are_played_in_order(run):
    config = config_of(run, "a.wav", "--step", "0", "-", "-o", "x.srt", "b.wav", "-o", "x.txt")
    assert config.input.files == ("a.wav", "-", "b.wav")
    assert config.output.output == ("x.srt", "x.txt")


def test_words_behind_two_dashes_are_files(run):
    assert config_of(run, "-q", "--", "-v.wav", "--help").input.files == ("-v.wav", "--help")


def test_serve_takes_no_audio_from_here(run):
    config = config_of(run, "serve", "--port", "0", command="serve")
    assert not config.input.source
    assert config.bind.port == 0


def test_serve_needs_the_server(run, capsys, monkeypatch):
    monkeypatch.setenv("STREAMD_PORT", "off")
    assert "without a server there are no clients" in complaint(run, capsys, "serve")


def test_command_of_two_words(run):
    config_of(run, "models", "import", "-q", "a.pt", "mine", command="models import")
    ((config, operands),) = run.runners["models import"].calls
    assert operands == ("a.pt", "mine")
    assert config.output.verbose == -1


def test_help_of_a_group_lists_its_commands(run, capsys):
    run("--help")
    assert "models get" not in capsys.readouterr().out
    run("models", "--help")
    listed = capsys.readouterr().out
    for name in {*NAMES} - {"", "models"}:
        assert (f"\n  {name} " in listed) == name.startswith("models ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("lsit", "no such command; did you mean list?"),
        ("xyzzy", "no such command; there are list, get, import, check, build, remove"),
        ("--json list", "put both words before the options"),
    ],
)
def test_no_such_command_in_the_group(words, said, capsys):
    assert main(["models", *words.split()]) == 2
    assert capsys.readouterr().err == f"streamd: models {words.split()[-1]}: {said}\n"


def test_a_mistyped_command_of_a_group_may_have_operands(capsys):
    assert main(["models", "gett", "base"]) == 2
    assert "no such command; did you mean get?" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["", "transcribe", "models get"])
def test_help_is_a_command_too(command, capsys):
    assert main(["help", *command.split()]) == 0
    shown = capsys.readouterr().out
    assert main([*command.split(), "--help"]) == 0
    assert shown == capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "code"),
    [
        ("german", "de"),
        ("Deutsch", "de"),
        ("日本語,Čeština", "ja,cs"),
        ("Haitian Creole", "ht"),
        ("de", "de"),
        ("en,German", "en,de"),
    ],
)
def test_languages_have_names(word, code, run):
    assert config_of(run, "-l", word).decoding.language == code


def test_every_language_of_whisper_has_a_name():
    assert {*LANGUAGE_CODES.values()} == {*LANGUAGES}


def test_transcribe_is_fast(run):
    config = config_of(run, "transcribe", "a.wav", "b.wav", command="transcribe")
    assert config.input.files == ("a.wav", "b.wav")
    assert not config.input.realtime


def test_file_named_like_a_command(run, tmp_path):
    (tmp_path / "speech").touch()
    assert config_of(run, "speech").input.files == ("speech",)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--stpe 500", "unknown option --stpe; did you mean --step?"),
        ("--rate 48000", "unknown option --rate; did you mean --input-rate?"),
        ("--stpe=500", "unknown option --stpe; did you mean --step?"),
        ("--xyzzy", "unknown option --xyzzy"),
        ("a.wav -5", "unknown option -5"),
        ("--step", "--step: needs a value: how often to caption, or auto; 0: at pauses"),
        ("--journal", "--journal: needs a value: folder for finals; auto: the default; off: none"),
        ("-o", "-o/--output: needs a value: file to write a transcript to; may be repeated"),
        ("--step half", "--step must be a whole number of ms from 0 to 30000, or auto, got half"),
        ("--ste 500", "unknown option --ste; did you mean --step?"),
        ("-bs 0", "--beam-size must be a whole number from 1 to 32, got 0"),
        ("--fast=yes", "--fast: ignored explicit argument 'yes'"),
        ("transcibe a.wav", "transcibe: no such command or file; did you mean transcribe?"),
        ("--step 0 transcribe a.wav", "put the command first: streamd transcribe ..."),
        ("speech", "speech: no such command or file"),
        ("-l klingon", "--language must be auto or languages: german, de, en,es, got klingon"),
        ("transcribe", "usage: streamd transcribe FILE..."),
        ("vocabulary foo", "usage: streamd vocabulary check ..."),
        ("vocabulary check a.txt b.txt", "vocabulary check takes only FILE, got b.txt"),
        (
            "models import a my b",
            "models import takes only PATH [NAME], got b; quote a name that has blanks",
        ),
        ("models list --step 500", "models list has no option --step"),
        ("-q models list", "put the command first: streamd models ..."),
        ("transcribe --device 1 a.wav", "transcribe has no option --device"),
        (
            "--num-speakers 2 a.wav",
            "streamd without a command has no option --num-speakers",
        ),
        (
            "transcribe --temperature=0.2 a.wav",
            "--temperature is gone: use --set search.temperatures=N, or several",
        ),
        ("-tp 0.1", "-tp is whisper.cpp's; streamd has --set search.temperatures=0,0.2,..."),
        (
            "--no-speech-threshold 0.5",
            "--no-speech-threshold is now --set search.no_speech_threshold=...",
        ),
        ("-osrt a.wav", "-osrt is whisper.cpp's; streamd has --output-format srt"),
        (
            "-mc 0 a.wav",
            "-mc is whisper.cpp's; streamd has --set session.context_tokens=N live, "
            "and to turn it off for transcribe longform.condition_on_previous_text=false",
        ),
        ("transcribe --fp16=False", "--fp16 is openai-whisper's; streamd has --precision"),
        ("--max-subscribers 2", "--max-subscribers is now --set limits.max_subscribers=..."),
        (
            "--set gate.flor_db=1",
            "--set gate.flor_db: no such setting; did you mean gate.floor_db?",
        ),
        ("--set gate.opn=1", "--set gate.opn: no such setting; streamd --set help lists them"),
        (
            "-o -",
            "--output must be FILE.txt, .md, .srt, .vtt, .lrc, .ass, .edl, .csv, .tsv, .json, "
            ".full.json, .jsonl, .html, .docx or .eaf; --format is for stdout, got -",
        ),
        ("serve a.wav", "serve takes no argument: a.wav; to caption a file: streamd a.wav"),
        ("serve 9000", "serve takes no argument: 9000; to choose the port: --port 9000"),
        ("help transcibe", "transcibe: no such command or file; did you mean transcribe?"),
        (
            "serve --allow https://a/b",
            "--allow must be a host name, or a website's origin, such as "
            "https://captions.example:8443, got https://a/b",
        ),
        (
            "--device cuda a.wav",
            "--device names a microphone: --compute says what runs the model",
        ),
        ("--token secret", "unknown option --token: use --token-file FILE, or STREAMD_TOKEN"),
        ("serve --no-server", "--no-server is gone: use --port off, for no server"),
        ("--config", "--config: expected one argument"),
        ("--config none.toml", "--config: cannot read none.toml: No such file or directory"),
    ],
)
def test_wrong_command_line_gets_one_line(words, expected, run, capsys):
    assert complaint(run, capsys, *words.split()) == expected


@pytest.mark.parametrize("words", [("",), ("transcribe", ""), ("watch", "")])
def test_the_name_of_an_unset_variable_is_refused(words, run, capsys):
    assert complaint(run, capsys, *words) == '"" is no name: is a variable of the shell empty?'


def test_print_config_is_the_effective_configuration(run, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("STREAMD_PORT", "9000")
    (tmp_path / "streamd.toml").write_text("[streaming]\nstep = 700\n[server]\nport = 9001\n")
    assert run("--config", "streamd.toml", "--endpoint-ms", "800", "--print-config") == 0
    printed = capsys.readouterr().out
    assert not run.runners[""].calls
    config = config_of(run, "--config", "streamd.toml", "--endpoint-ms", "800")
    assert printed == as_toml(config)
    assert (config.session.step, config.endpoint.plain) == (35, 40)
    assert config.bind.port == 9000


def test_no_file_is_read_unasked(run, tmp_path):
    (tmp_path / "streamd.toml").write_text("[streaming]\nstep = 700\n")
    assert config_of(run) == Config()


def test_version(run, capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out == f"streamd {streamd.__version__}\n"


@pytest.mark.parametrize("command", NAMES)
@pytest.mark.parametrize("flag", ["-h", "--help", "--help-all"])
def test_help_fits_a_terminal(command, flag, run, capsys):
    assert run(*command.split(), flag) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"Usage: streamd {command}".rstrip())
    assert max(map(len, lines)) <= 80


def test_full_help_has_every_option_and_the_short_one_fits_on_two_screens(run, capsys):
    every = ""
    for name in NAMES:
        run(*name.split(), "--help-all")
        full = capsys.readouterr().out
        run(*name.split(), "--help")
        short = capsys.readouterr().out
        assert len(short.splitlines()) <= 52
        assert ("--library" in short) == ("--keep DIR" in short or "--keep, " in short)
        assert {*re.findall(r"--[a-z-]+", short)} <= {*re.findall(r"--[a-z-]+", full)}
        every += full.replace("\n", " ")
    for option in OPTIONS.values():
        assert option.is_positional or f"{option.shown_flags[-1]} " in every


def test_every_flag_of_the_help_is_in_the_reference(run, capsys):
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    for name in NAMES:
        run(*name.split(), "--help-all")
        rows = re.findall(r"^  (-\S.*?)(?:  |$)", capsys.readouterr().out, re.M)
        flags = {flag for row in rows for flag in re.findall(r"(?:^|, )(-[a-z-]+)", row)}
        assert {"--help", "--config"} <= flags
        assert [flag for flag in flags if not re.search(rf"`{flag}[ `]", page)] == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineError("the runtime failed"), 1),
        (ConfigError("wrong\nin two lines"), 2),
        (SourceError("no device"), 3),
        (ModelError("no model"), 4),
        (BindError("port in use"), 5),
    ],
)
def test_each_error_is_one_line_and_its_own_code(error, code, run, capsys):
    run.runners[""].failure = error
    assert run() == code
    assert capsys.readouterr().err == f"streamd: {error}".replace("\n", " ") + "\n"


def test_a_bug_is_not_hidden(run):
    run.runners[""].failure = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        run()


def test_exit_code_of_the_command_is_the_program_s(run):
    run.runners[""].code = 130
    assert run() == 130


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ImportError("initialization failed")])
def test_interrupt_before_anything_runs(failure, run):
    """ONNX Runtime raises the second one if it is interrupted while it is imported."""
    if isinstance(failure, ImportError):
        failure.__cause__ = KeyboardInterrupt()
    run.runners[""].failure = failure
    assert run() == 130
    run.runners[""].failure = ImportError("no module named numpy")
    with pytest.raises(ImportError):
        run()


def python(code: str, **streams) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", code]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, **streams)


def test_reader_that_leaves_ends_the_program_quietly():
    reading, writing = os.pipe()
    os.close(reading)
    code = "import sys; from streamd.cli import main; sys.exit(main(['--help']))"
    with os.fdopen(writing, "wb") as stdout, python(code, stdout=stdout) as process:
        _, err = process.communicate()
    assert process.returncode == 141
    assert err == b""


needs_dev_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


@needs_dev_full
@pytest.mark.parametrize("words", ["--version", "--help", "--print-config"])
def test_full_disk_is_one_line(words):
    code = f"import sys; from streamd.cli import main; sys.exit(main([{words!r}]))"
    with open("/dev/full", "wb") as stdout, python(code, stdout=stdout) as process:
        _, err = process.communicate()
    assert err == b"streamd: standard output cannot be written: No space left on device\n"
    assert process.returncode == 1


@needs_dev_full
def test_the_exit_code_needs_no_stderr():
    code = "import sys; from streamd.cli import main; sys.exit(main(['--nonsense']))"
    with open("/dev/full", "wb") as stderr:
        assert subprocess.run([sys.executable, "-c", code], stderr=stderr).returncode == 2


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_an_empty_one(tmp_path, closed):
    code = (
        "import sys, pathlib; from streamd.cli import main; code = main(['--version']);"
        "heard = sys.stdin.buffer.read() if sys.argv[1].startswith('<') else b'';"
        "file = open('file');"
        "pathlib.Path('found').write_text(f'{code} {heard} {file.fileno() > 2}')"
    )
    (tmp_path / "file").touch()
    command = f'exec "$0" -c "$1" "$2" {closed}'
    subprocess.run(["sh", "-c", command, sys.executable, code, closed], cwd=tmp_path, check=True)
    assert (tmp_path / "found").read_text() == "0 b'' True"


def test_answers_without_loading_the_engine():
    heavy = {"numpy", "onnxruntime", "onnx", "sounddevice", "soundfile", "websockets", "tiktoken"}
    heavy |= {"huggingface_hub", "httpx2", "av"}
    code = (
        "import sys; from streamd.cli import main; code = main(['--help']);"
        f"sys.exit(code or ' '.join({heavy!r} & sys.modules.keys()) or None)"
    )
    with python(code, stdout=subprocess.DEVNULL) as process:
        _, err = process.communicate()
    assert (process.returncode, err) == (0, b"")


def test_an_interrupt_while_the_program_is_loaded_is_no_traceback():
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'msgspec': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from streamd.cli import main; sys.exit(main(['models', 'import', 'x']))"
    )
    with python(code) as process:
        _, err = process.communicate()
    assert (process.returncode, err) == (130, b"")


@pytest.mark.parametrize("name", NAMES)
def test_the_function_that_a_command_names_is_there_and_takes_its_operands(name):
    """No tool checks the types of what is named in a string."""
    (command,) = (command for command in COMMANDS if command.name == name)
    module, _, function = command.target.partition(":")
    # Files are an option.
    words = [word for word in command.operand.split() if "..." not in word and word != "FILE"]
    if any(each.startswith(f"{name} ") for each in NAMES):  # a word behind a group is refused
        words = []
    for operands in words, [word for word in words if not word.startswith("[")]:
        signature(getattr(import_module(module), function)).bind(Config(), *operands)


@pytest.mark.parametrize("name", NAMES)
def test_a_command_names_only_options_and_sections_that_exist(name):
    (command,) = (command for command in COMMANDS if command.name == name)
    words = {word.partition("=")[0].removeprefix("-") for word in command.takes}
    assert words <= {*OPTIONS, *SECTIONS}
    assert {*command.needs} <= {"model", "microphone", "clients"}


def test_a_file_whose_name_begins_like_an_option_can_be_named(run, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("-xy.wav").touch()
    said = complaint(run, capsys, "transcribe", "-xy.wav")
    assert said == "unknown option -xy.wav; the file is ./-xy.wav"


def test_a_wrong_file_name_is_shown_as_it_was_written(run, capsys):
    assert complaint(run, capsys, "-o", "a.doc").endswith("; --format is for stdout, got a.doc")
