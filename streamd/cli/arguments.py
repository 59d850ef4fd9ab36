"""The command line and its help, both made from the fields of the configuration.

argparse reads the words, and keeps values as text: the configuration checks them, so that a mistake
gets the same message wherever it was made.
"""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from pathlib import Path
from textwrap import fill
from typing import NoReturn

from msgspec import inspect

from streamd.cli.hints import meant
from streamd.config import OPTIONS, SECTIONS, SET, SETTINGS, refuse_old, suggestion
from streamd.config.table import Field
from streamd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    `name` has one word or two; commands whose names begin with the same word are a group, which has
    a command of that word itself. `operand` is how the help writes the operands, such as
    ``[FILE...]`` or ``PATH [NAME]``. `target` is the function that runs it, as ``module:function``.
    It `needs` a "model" on this machine, a "microphone" unless files are named, or "clients" since
    this machine is no source of audio. `takes` has the sections and names of its options, those
    that it does not have with a hyphen before them, or a value behind them that they are given.
    """

    name: str
    operand: str
    summary: str
    target: str
    needs: tuple[str, ...]
    takes: tuple[str, ...]

    @property
    def options(self) -> tuple[Field, ...]:
        """Its options, sorted by section; every command has those of messages."""
        takes, lacks = {*self.takes, "verbose", "log-format"}, {*self.preset}
        lacks |= {word[1:] for word in takes if word[0] == "-"}
        taken = (o for o in OPTIONS.values() if o.section in takes or o.name in takes)
        return tuple(option for option in taken if option.name not in lacks)

    @property
    def preset(self) -> Mapping[str, str]:
        """The values that it gives to options."""
        return dict(word.split("=") for word in self.takes if "=" in word)


def commands_of(table: str) -> tuple[Command, ...]:
    """Read commands, each in lines of its own: name and operand, summary, target and options."""
    found: list[Command] = []
    for block in re.split(r"\n(?! )", table.strip("\n")):
        usage, summary, target, *takes = map(str.strip, block.splitlines())
        name, _, operand = usage.partition(":")
        target, _, needs = target.partition(", needs ")
        words = tuple(" ".join(takes).split())
        found.append(
            Command(
                name, operand.strip(), summary, f"streamd.{target}", tuple(needs.split()), words
            )
        )
    return tuple(found)


ACTIONS = {
    "help": "show the common options",
    "help-all": "show all options",
    "version": "show the version",
    "print-config": "print the effective configuration as TOML",
}
"""Flags of every command, in the order of precedence. The command itself does not run then."""
_LISTS = ("help", "list", "?")
"""Values of ``--set`` that ask what there is."""


@dataclass(frozen=True, slots=True)
class Request:
    """A command line that was read.

    `given` has the unchecked text of each option, or a list if it may repeat; `action` is one of
    `ACTIONS`, "settings" for ``--set help``, or empty to run the command.
    """

    command: Command
    given: Mapping[str, str | list[str]]
    operands: tuple[str, ...]
    config_file: str
    action: str


def parse(argv: Sequence[str], commands: Sequence[Command]) -> Request:
    """Read the words after the program's name; the first one or two may name a command.

    Without such a name the first of `commands` is used. Raises `ConfigError`.
    """
    named = {command.name: command for command in commands[1:]}
    command, words = _command(argv, commands[0], named)
    # What follows -- is cut off here: Python's versions differ in how argparse treats it.
    before = list(takewhile(lambda word: word != "--", words))
    refuse_foreign(before)
    namespace, rest = _parser(command).parse_known_args(before)
    _refuse_unknown(rest, command)
    values = vars(namespace)
    asked_for = {name: values.pop(name) for name in ACTIONS}
    action = next((name for name in ACTIONS if asked_for[name]), "")
    if not action and {*(values[SET] or ())} & {*_LISTS}:
        action = "settings"
    config_file = values.pop("config") or ""
    operands = (*rest, *words[len(before) + 1 :])
    if not action:
        _check_count(command, operands)
        _refuse_misplaced(() if command.name else rest, list(named))
    given = {**command.preset, **{name: raw for name, raw in values.items() if raw is not None}}
    if operands and "FILE" in command.operand:
        given["files"], operands = list(operands), ()
    return Request(command, given, operands, config_file, action)


def _command(
    argv: Sequence[str], default: Command, named: Mapping[str, Command]
) -> tuple[Command, Sequence[str]]:
    """Return the command, and the words after its name."""
    if argv and argv[0] == "help":
        explained, rest = _command(argv[1:], default, named)
        if explained is default:
            _refuse_misplaced([word for word in rest if word[:1] != "-"], list(named))
        return explained, ["--help", *rest]
    for n_words in (2, 1):
        if command := named.get(" ".join(argv[:n_words])):
            return command, argv[n_words:]
    return default, argv


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        flag, _, wrong = message.removeprefix("argument ").partition(": ")
        meant = [each.opt.help for each in OPTIONS.values() if "/".join(each.flags) == flag]
        if wrong == "expected one argument" and meant:
            wrong = f"needs a value: {meant[0]}"
        raise ConfigError(f"{flag}: {wrong}" if wrong else flag)


def _parser(command: Command) -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    for option in command.options:
        _add(parser, option)
    parser.add_argument("--config")
    parser.add_argument(f"--{SET}", action="append")
    for name in ACTIONS:
        parser.add_argument(*_action_flags(name), dest=name, action="store_true")
    return parser


def _add(parser: _Parser, option: Field) -> None:
    constants = dict(option.opt.values)
    if option.is_switch:
        constants |= dict.fromkeys(option.flags, "true") | dict.fromkeys(option.off_flags, "false")
    elif option.flags:
        action = "append" if option.repeats else "store"
        parser.add_argument(*option.flags, dest=option.name, action=action)
    for flag, value in constants.items():
        parser.add_argument(flag, dest=option.name, action="store_const", const=value)


def _action_flags(name: str) -> tuple[str, ...]:
    return ("-h", "--help") if name == "help" else (f"--{name}",)


def _refuse_unknown(rest: Sequence[str], command: Command) -> None:
    for word in rest:
        if not word.startswith("-") or word == "-":
            continue
        flag, *_ = word.split("=")
        if Path(word).is_file():
            raise ConfigError(f"unknown option {word}; the file is ./{word}")
        if flag.startswith("--") and (instead := meant(flag)):
            raise ConfigError(f"unknown option {flag}: use {instead}")
        if any(flag in option.every_flag for option in OPTIONS.values()):
            here = command.name or "streamd without a command"
            raise ConfigError(f"{here} has no option {flag}")
        plain = flag.removeprefix("--").replace("_", "-")
        for name in (plain, plain.removeprefix("no-")):
            refuse_old(name, flag, f"--{SET} {{}}={{}}")
        known = [known for option in command.options for known in option.every_flag]
        known += ["--config", f"--{SET}"]
        known += [known for name in ACTIONS for known in _action_flags(name)]
        raise ConfigError(f"unknown option {flag}{suggestion(flag, known)}")


def _check_count(command: Command, operands: Sequence[str]) -> None:
    wanted = command.operand.split()
    if "" in operands:
        raise ConfigError('"" is no name: is a variable of the shell empty?')
    needed = [*takewhile(lambda word: not word.startswith("["), wanted)]
    if len(operands) < len(needed):
        raise ConfigError(f"usage: streamd {command.name} {command.operand}")
    if len(operands) > len(wanted) and "..." not in command.operand:
        extra = operands[len(wanted)]
        hint = "; quote a name that has blanks" if "NAME" in command.operand else ""
        if Path(extra).suffix and not wanted:
            hint = f"; to caption a file: streamd {extra}"
        elif extra.isdecimal() and any(option.name == "port" for option in command.options):
            hint = f"; to choose the port: --port {extra}"
        takes = f"only {command.operand}, got" if wanted else "no argument:"
        raise ConfigError(f"{command.name} takes {takes} {extra}{hint}")


def _refuse_misplaced(words: Sequence[str], names: Sequence[str]) -> None:
    """Refuse words that are neither files nor addresses: they were meant as commands."""
    for word in words:
        if word != "-" and not Path(word).suffix and "/" not in word and not Path(word).exists():
            if word in names:
                raise ConfigError(f"put the command first: streamd {word} ...")
            if instead := meant(word):
                raise ConfigError(f"{word}: no such command or file: use {instead}")
            raise ConfigError(f"{word}: no such command or file{suggestion(word, names)}")


_OPENAI = {
    "--best_of --best-of --length_penalty --length-penalty --patience": (
        "no option: no other value was better"
    ),
    "--clip_timestamps --clip-timestamps": "no option: cut the file first, as with ffmpeg",
    "--append_punctuations --append-punctuations --prepend_punctuations --prepend-punctuations": (
        "no option: punctuation belongs to its word"
    ),
    "--fp16": "--precision",
    "--hallucination_silence_threshold --hallucination-silence-threshold": (
        "no option: the voice detector leaves silence out"
    ),
    "--max_line_count --max-line-count": "--set cues.max_lines=N",
    "--model_dir --model-dir": "--model with a path, or the variables of docs/models.md",
    "--temperature_increment_on_fallback": "--set search.temperatures=0,0.2,...",
    "--word_timestamps": "--set longform.word_timestamps=false, to turn them off",
}
_CPP = {
    "-ac": "no option: the encoder computes as much as there is sound",
    # whisper.cpp's compares the loudness of two channels
    "-di --diarize": "--speakers, or --channels split where each person has a channel",
    "-tdrz --tinydiarize": "--speakers",
    "-dl --detect-language": "--language auto, the default; json and jsonl tell what it was",
    "-dtw --dtw": "no option: all word times come from attention",
    "-bo": "no option: no other value was better",
    "-et --entropy-thold": "no option: repetitions are found word by word",
    "-fa --flash-attn -nfa --no-flash-attn -ng --no-gpu -dev -oved --ov-e-device": "--compute",
    "-fp --font-path": "no option: what burns --output karaoke.ass into a video has the font",
    "-fth --freq-thold": "no option: webrtc's voice detector needs none; see --vad",
    "--file": "the file alone, without an option",
    "--grammar --grammar-rule --grammar-penalty": (
        "no option: --vocabulary names a file with words to expect"
    ),
    "-kc": "no option: an utterance that follows at once is read with the one before",
    "-ls --log-score -ojf --output-json-full": "--output-format json-full",
    "-lpt --logprob-thold": (
        "--set search.least_evidence=N live, search.logprob_threshold=N for transcribe"
    ),
    "-mc --max-context -nc --no-context": (
        "--set session.context_tokens=N live, and to turn it off for transcribe "
        "longform.condition_on_previous_text=false"
    ),
    "-mt --max-tokens": "no option: what a window may hold follows from its length",
    "-nf": "--set search.temperatures=0",
    "-np --no-prints": "--quiet",
    "-nth --no-speech-thold": "--set search.no_speech_threshold=N",
    "-nt --no-timestamps": "--format txt, which has no times",
    "-oj --output-json": "--output-format json",
    **{f"-o{x} --output-{x}": f"--output-format {x}" for x in ("csv", "lrc", "srt", "txt", "vtt")},
    "-owts --output-words": "--output karaoke.ass",
    "-of --output-file": "--output, with its ending",
    "-ot --offset-t --duration": "no option: cut the file first, as with ffmpeg",
    "-on --offset-n": "no option: segments are numbered from 0",
    "-p --processors": "no option: files are processed one after the other",
    "-pc --print-colors --print-confidence -wt --word-thold": "--confidence",
    "-pp --print-progress": "no option: captions appear as they are found",
    "-ps --print-special": "--output-format json-full, which has every token",
    "-sa --save-audio": "--record DIR",
    "-sns --suppress-nst --suppress-regex": "no option: annotations are never written",
    "-sow --split-on-word": "no option: lines are cut between words",
    "-tp -tpi --temperature-inc": "--set search.temperatures=0,0.2,...",
    "-vm --vad-model": "--vad",
    "-vt --vad-threshold -vth --vad-thold": "--set gate.open_share=N",
    "-vspd --vad-min-speech-duration-ms": "no option: 120 ms of voice begin an utterance",
    "-vsd --vad-min-silence-duration-ms": "--endpoint-ms",
    "-vmsd --vad-max-speech-duration-s": "--set endpoint.longest_ms=N",
    "-vp --vad-speech-pad-ms -vo --vad-samples-overlap": (
        "no option: half a second before speech is always kept"
    ),
}
FOREIGN: Mapping[str, Mapping[str, str]] = {"openai-whisper": _OPENAI, "whisper.cpp": _CPP}
"""The flags of other programs that streamd lacks, and what to use instead."""


def refuse_foreign(words: Sequence[str]) -> None:
    """Raise a `ConfigError` that says what another program's option is called here.

    This must run before argparse, which takes ``-osrt`` for ``-o srt``.
    """
    used = {word.split("=")[0] for word in words}
    for program, rows in FOREIGN.items():
        for flags, replacement in rows.items():
            for flag in used.intersection(flags.split()):
                raise ConfigError(f"{flag} is {program}'s; streamd has {replacement}")


def settings_text() -> str:
    """Return what ``--set help`` shows: all fields without an option, and their defaults."""
    lines = ["The settings for --set, with their defaults (docs/options.md says what each means):"]
    for name, setting in SETTINGS.items():
        value = setting.written(setting.default)
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        lines.append(f"  {name}={shown}  ({setting.allowed})")
    return "\n".join(lines) + "\n"


WIDTH = 80
_INDENT = 30


def help_text(command: Command, commands: Sequence[Command], *, full: bool = False) -> str:
    """Return what ``streamd COMMAND --help`` shows, or with `full` ``--help-all``."""
    lines = [*_usage(command, commands), *_options(command, full=full), "General:"]
    lines.append(_row("--config FILE", "read options from a TOML file"))
    if full:
        lines.append(_row(f"--{SET} NAME=VALUE", "set what has no option (docs/options.md)"))
    for name, meaning in ACTIONS.items():
        lines.append(_row("-h, --help" if name == "help" else f"--{name}", meaning))
    return "\n".join(lines) + "\n"


def _usage(command: Command, commands: Sequence[Command]) -> Iterator[str]:
    words = ("streamd", command.name, "[OPTION...]" if command.options else "", command.operand)
    yield f"Usage: {' '.join(filter(None, words))}"
    yield fill(f"{command.summary[0].upper()}{command.summary[1:]}.", WIDTH)
    yield ""
    parts = [c for c in commands if c.name and c.name.rpartition(" ")[0] == command.name]
    if parts:
        group = f"streamd {command.name}".rstrip()
        yield f"Commands (more: {group} COMMAND --help):"
        for part in parts:
            operand = "COMMAND" if "|" in part.operand else part.operand
            yield _row(f"{part.name} {operand}", part.summary)
        yield ""


def _options(command: Command, *, full: bool) -> Iterator[str]:
    shown = [option for option in command.options if option.flags and (full or option.opt.common)]
    if not full and shown:
        yield "Common options:"
        for option in shown:  # one that has flags for its values is shown by these, in one line
            flags = ", ".join(option.opt.values)
            yield _row(flags, option.opt.help) if flags else _option(option)
        yield ""
        return
    for group, options in groupby(shown, lambda option: option.section):
        yield f"{SECTIONS[group]}:"
        for option in options:
            yield _option(option)
            for value, same in groupby(option.opt.values, option.opt.values.__getitem__):
                yield _row(", ".join(same), f"the same as --{option.name} {value}")
        yield ""


def _option(option: Field) -> str:
    # The first, which is short or used in the documents, and the last: docs/options.md has others.
    flags = dict.fromkeys((option.shown_flags[0], option.shown_flags[-1]))
    value = option.written(option.default)
    shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
    default = "" if option.is_switch or option.default in ("", ()) else f" [{shown}]"
    return _row(f"{', '.join(flags)} {_metavar(option)}".rstrip(), option.opt.help + default)


def _metavar(option: Field) -> str:
    if option.choices:
        return "|".join(option.choices)
    match option.type:
        case inspect.BoolType():
            return ""
        case inspect.IntType() | inspect.FloatType():
            return option.unit.upper() or "N"
        case _:
            return option.unit or "TEXT"


def _row(left: str, right: str) -> str:
    head = f"  {left}"
    gap = "\n" if len(head) > _INDENT - 2 else ""
    body = fill(right, WIDTH, initial_indent=" " * _INDENT, subsequent_indent=" " * _INDENT)
    return f"{head}{gap}{body}" if gap else head + body[len(head) :]
