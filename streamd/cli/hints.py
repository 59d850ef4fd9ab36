"""What people try who do not know streamd's words yet, and what to use instead."""

from collections.abc import Iterable, Mapping

from streamd.config import suggestion

_LIVE = "streamd alone, which captions the microphone"
_FILE = "-o FILE, whose ending is the format"
_GET = "streamd models get NAME"
_MEANT = {
    "gpu cuda use-gpu ngl metal mps rocm device-index": (
        "--compute gpu, with the package that docs/gpu.md names"
    ),
    "cpu": "--compute cpu",
    "json": "--jsonl for events on stdout, or -o FILE.json",
    "srt vtt txt subtitle subtitles subs text": _FILE,
    "output-file outfile out file-output save write": _FILE,
    "input in file input-file i audio": "the name of the file alone",
    "list-devices devices list-microphones list-mics show-devices": "streamd devices",
    "list-models show-models": "streamd models list",
    "list": "streamd models list, and streamd devices",
    "download pull install fetch get add": _GET,
    "mic microphone input-device source": "--device NAME; streamd devices lists them",
    "live stream start run listen record realtime caption captions": _LIVE,
    "fast-mode speed batch": "--fast, or streamd transcribe FILE",
    "dictation type typing keyboard": "streamd dictate",
    "ui web gui open page browser overlay": "streamd, whose page is at the address that it shows",
    "api rest websocket server-only daemon": "streamd serve",
    "convert decode whisper": "streamd transcribe FILE",
    "translate-to target-language": "--translate, into English only",
    "words keywords boost phrases keyterms custom-vocabulary": "--hotwords or --vocabulary FILE",
    "diarization speaker-labels speaker who": "--speakers",
    "min-speakers max-speakers n-speakers speakers-expected": "--num-speakers N",
    "stereo multichannel split-channels": "--channels split",
    "silence pause silence-ms": "--endpoint-ms N",
    "lan public bind listen-all network phone qr": "--share, or --host and --token-file",
    "password api-key key auth secret token": "--token-file FILE, or STREAMD_TOKEN",
    "resume continue skip": "--skip-existing, with streamd transcribe",
    "debug trace log log-level": "-v, or -vv",
    "silent": "--quiet",
    "test check diagnose status info": "streamd doctor",
    "benchmark measure speedtest": "streamd bench",
    "update upgrade self-update": "git pull and pip install . in a copy of the repository",
    "uninstall": "pip uninstall streamd-captions",
    "config settings show-config options": "--print-config; docs/options.md explains all options",
    "print-colors color colour": "--confidence; the variable FORCE_COLOR colours pipes, too",
    "completion-script completions": "streamd completion bash|zsh|fish",
}
_IN_GROUP = {
    "download pull install fetch add": "get",
    "ls show all": "list",
    "rm delete uninstall del": "remove",
    "convert copy load": "import",
    "test verify bench info": "check",
    "compile export": "build",
}


def meant(word: str) -> str:
    """Return what to use in place of an option or command that does not exist, or nothing."""
    return _looked_up(word.lstrip("-").replace("_", "-").lower(), _MEANT)


def command_in_group(word: str, names: Iterable[str]) -> str:
    """Return the end of a message about a word that should have named a command of a group."""
    there = list(names)
    if word in there:
        return ": put both words before the options"
    found = _looked_up(word.lower(), _IN_GROUP)
    hint = f"; did you mean {found}?" if found in there else suggestion(word, there)
    return f": no such command{hint or '; there are ' + ', '.join(there)}"


def _looked_up(word: str, table: Mapping[str, str]) -> str:
    return next((answer for words, answer in table.items() if word in words.split()), "")
