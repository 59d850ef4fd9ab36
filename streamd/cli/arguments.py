"""From the words of the command line to a `Request`; argparse does the reading.

The parser is made from the table of options. It keeps values as text: the configuration checks
them, so that a mistake is reported alike wherever it was made.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import NoReturn

from streamd.config import OPTIONS, SET, Config, Option, successor, suggestion
from streamd.errors import ConfigError

Run = Callable[[Config, tuple[str, ...]], int]
"""Carries a command out, given its operands; returns the exit code, raises a `StreamdError`."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    `name` has one word or two; commands whose names begin with the same word are a group, which has
    a command of that word itself. `operand` is how the help writes the operands: ``[FILE...]``,
    ``FILE...``, ``URL``, ``PATH [NAME]`` or nothing.
    `options` are those that it has, those of a group together. `preset` says in what the command
    differs from the plain one, as the command line would say it. One that `writes_config` gets the
    path behind ``--config``, or nothing, as its only operand; the file need not be there.
    """

    name: str
    summary: str
    run: Run
    operand: str = ""
    options: tuple[Option, ...] = ()
    preset: Mapping[str, str] = field(default_factory=dict)
    writes_config: bool = False

    @property
    def least_operands(self) -> int:
        """How many operands it needs."""
        return int(self.operand != "" and not self.operand.startswith("["))

    @property
    def most_operands(self) -> int:
        """How many operands it can use."""
        return sys.maxsize if "..." in self.operand else len(self.operand.split())

    def is_part_of(self, group: str) -> bool:
        """Whether it is listed in the help of that command; "" is the program itself."""
        first, _, second = self.name.rpartition(" ")
        return first == group and second != ""


ACTIONS = {
    "help": "show the common options",
    "help-all": "show all options",
    "version": "show the version",
    "print-config": "print the effective configuration as TOML",
}
"""Flags that every command has. They are done instead of it; of several, the first one here."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for.

    `given`: option names and their unchecked text, a list where an option may repeat; `operands`:
    the words that are no options; `action`: one of `ACTIONS`, or empty to run the command.
    """

    command: Command
    given: Mapping[str, str | list[str]]
    operands: tuple[str, ...]
    config_file: str
    action: str


def parse(argv: Sequence[str], commands: Sequence[Command]) -> Request:
    """Read a command line; the command, if one is named, is its first word or its first two.

    Parameters
    ----------
    argv : without the program's name
    commands : the first one is meant where none is named

    Raises
    ------
    ConfigError
        an unknown command or option, a flag without its value, too few or too many operands
    """
    named = {command.name: command for command in commands[1:]}
    command, words = _command(argv, commands[0], named)
    # What follows -- is cut off here: Python's versions differ in how argparse treats it.
    before = list(takewhile(lambda word: word != "--", words))
    refuse_foreign(before)
    namespace, rest = _parser(command).parse_known_args(_with_lists(before))
    _refuse_unknown(rest, command)
    values = vars(namespace)
    asked_for = {name: values.pop(name) for name in ACTIONS}
    action = next((name for name in ACTIONS if asked_for[name]), "")
    config_file = values.pop("config") or ""
    operands = (*rest, *words[len(before) + 1 :])
    if not action:
        _check_count(command, operands)
        _refuse_misplaced(() if command.name else rest, list(named))
    given = {**command.preset, **{name: raw for name, raw in values.items() if raw is not None}}
    if operands and "FILE" in command.operand:
        given["files"] = list(operands)
    return Request(command, given, operands, config_file, action)


def _command(
    argv: Sequence[str], default: Command, named: Mapping[str, Command]
) -> tuple[Command, list[str]]:
    """The command, and the words behind its name."""
    for n_words in (2, 1):
        if command := named.get(" ".join(argv[:n_words])):
            return command, list(argv[n_words:])
    return default, list(argv)


def _with_lists(words: Sequence[str]) -> list[str]:
    """Hang lists such as -1,50257 on the flag before them; argparse knows only single numbers."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1].startswith("--") and re.fullmatch(r"-\d+(,-?\d+)+", word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))


def _parser(command: Command) -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    for option in command.options:
        _add(parser, option)
    parser.add_argument("--config")
    parser.add_argument(f"--{SET}", action="append")
    for name in ACTIONS:
        parser.add_argument(*_action_flags(name), dest=name, action="store_true")
    return parser


def _add(parser: _Parser, option: Option) -> None:
    constants = [
        (flag, value) for value, flags in option.opt.short_for.items() for flag in flags.split()
    ]
    if option.is_switch:
        constants += [(flag, "true") for flag in option.flags]
        constants += [(flag, "false") for flag in option.off_flags]
    elif option.flags:
        action = "append" if option.repeats else "store"
        parser.add_argument(*option.flags, dest=option.name, action=action)
    for flag, value in constants:
        parser.add_argument(flag, dest=option.name, action="store_const", const=value)


def _action_flags(name: str) -> tuple[str, ...]:
    return ("-h", "--help") if name == "help" else (f"--{name}",)


def _refuse_unknown(rest: Sequence[str], command: Command) -> None:
    for word in rest:
        if not word.startswith("-") or word == "-":
            continue
        flag, *_ = word.split("=")
        if any(flag in option.every_flag for option in OPTIONS.values()):
            here = command.name or "streamd without a command"
            raise ConfigError(f"{here} has no option {flag}")
        name = flag.removeprefix("--").removeprefix("no-").replace("_", "-")
        if setting := successor(name):
            raise ConfigError(f"{flag} is now --{SET} {setting}=...")
        known = [known for option in command.options for known in option.every_flag]
        known += ["--config", f"--{SET}"]
        known += [known for name in ACTIONS for known in _action_flags(name)]
        raise ConfigError(f"unknown option {flag}{suggestion(flag, known)}")


def _check_count(command: Command, operands: Sequence[str]) -> None:
    if len(operands) < command.least_operands:
        raise ConfigError(f"{command.name} needs {command.operand}")
    if len(operands) > command.most_operands:
        raise ConfigError(f"{command.name} cannot use {operands[command.most_operands]}")


def _refuse_misplaced(words: Sequence[str], names: Sequence[str]) -> None:
    """Refuse what was meant as a command but would be taken for a file."""
    for word in words:
        if word != "-" and not Path(word).suffix and "/" not in word and not Path(word).exists():
            if word in names:
                raise ConfigError(f"command {word} must be the first word")
            raise ConfigError(f"{word}: no such command or file{suggestion(word, names)}")


_OPENAI = {
    "--clip_timestamps --clip-timestamps": "--clip-timestamps-ms, in ms",
    "--condition_on_previous_text": "--no-condition-on-previous-text, to turn it off",
    "--carry_initial_prompt": "--carry-initial-prompt, without a value",
    "--fp16": "--precision",
    "--hallucination_silence_threshold --hallucination-silence-threshold": (
        "--hallucination-silence-threshold-ms, in ms"
    ),
    "--highlight_words": "--highlight-words, without a value",
    "--model_dir --model-dir": "--model with a path, or the variables of docs/models.md",
    "--temperature_increment_on_fallback": "--no-fallback, or --set search.temperatures=0,0.2,...",
    "--word_timestamps": "--no-word-timestamps, to turn them off",
}
_CPP = {
    "-di --diarize -tdrz --tinydiarize": "no option: who speaks is not told apart",
    "-dl --detect-language": "--language auto; json and jsonl tell what it was",
    "-dtw --dtw": "no option: all word times come from attention",
    "-bo": "--set search.best_of=N",
    "-et --entropy-thold": "--set search.entropy_threshold=N",
    "-fa --flash-attn -nfa --no-flash-attn -ng --no-gpu -dev -oved --ov-e-device": (
        "no option: it runs on the CPU"
    ),
    "-fp --font-path": "no option: fontconfig chooses the font of videos",
    "-fth --freq-thold": "no option: webrtc's voice detector needs none; see --vad",
    "--file": "the file alone, without an option",
    "--grammar --grammar-rule --grammar-penalty": (
        "no option: --hotwords tells the model which words to expect"
    ),
    "-ls --log-score -ojf --output-json-full": "--output-format json-full",
    "-lpt --logprob-thold": "--set search.logprob_threshold=N",
    "-mc --max-context": (
        "--set session.context_tokens=N live, --no-condition-on-previous-text for transcribe"
    ),
    "-mt": "--set search.max_tokens=N",
    "-np --no-prints": "--quiet",
    "-nt --no-timestamps": "--format text, which has no times",
    "-oj --output-json": "--output-format json",
    "-ocsv --output-csv": "--output-format csv",
    "-olrc --output-lrc": "--output-format lrc",
    "-osrt --output-srt": "--output-format srt",
    "-otxt --output-txt": "--output-format txt",
    "-ovtt --output-vtt": "--output-format vtt",
    "-owts --output-words": "--output karaoke.mp4",
    "-of --output-file": "--output, with its ending",
    "-ot --offset-t": "--clip-timestamps-ms START",
    "--duration": "--clip-timestamps-ms START,END",
    "-on --offset-n": "no option: segments are numbered from 0",
    "-p --processors": "no option: a file is gone through from its beginning to its end",
    "-pc --print-colors": "--confidence",
    "--print-confidence": "--confidence or --mark-low",
    "-pp --print-progress": "no option: captions appear as they are found",
    "-ps --print-special": "--output-format json-full, which has every token",
    "-sa --save-audio": "--record DIR",
    "-sns --suppress-nst": "--suppress-tokens, which is on with -1",
    "--suppress-regex": "--suppress-tokens",
    "-sow --split-on-word": "no option: lines are cut between words",
    "-tpi": "--set search.temperatures=0,0.2,...",
    "-vm --vad-model": "--vad",
    "-vt -vth --vad-thold": "--set gate.open_share=N",
    "-vspd --vad-min-speech-duration-ms": "--set gate.attack_ms=N",
    "-vsd --vad-min-silence-duration-ms": "--endpoint-ms",
    "-vmsd --vad-max-speech-duration-s": "--max-utterance-ms, in ms",
    "-vp --vad-speech-pad-ms -vo --vad-samples-overlap": "--pre-roll-ms",
    "-wt --word-thold": "--mark-low",
}
FOREIGN: Mapping[str, Mapping[str, str]] = {"openai-whisper": _OPENAI, "whisper.cpp": _CPP}
"""Of each program, its flags that have another name here or none, and what to use instead.

A test compares them with the tables of docs/recipes.md.
"""


def refuse_foreign(words: Sequence[str]) -> None:
    """Tell who uses another program's option what it is called here.

    It must look before argparse does, which takes ``-osrt`` for ``-o srt``. Raises `ConfigError`.
    """
    cures = {
        flag: f"is {program}'s; streamd has {cure}"
        for program, rows in FOREIGN.items()
        for flags, cure in rows.items()
        for flag in flags.split()
    }
    for word in words:
        flag, *_ = word.split("=")
        if flag in cures:
            raise ConfigError(f"{flag} {cures[flag]}")
