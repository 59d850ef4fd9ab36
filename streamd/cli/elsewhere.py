"""What options of openai-whisper and whisper.cpp are called here, for people who know those."""

from collections.abc import Mapping, Sequence

from streamd.errors import ConfigError

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
ELSEWHERE: Mapping[str, Mapping[str, str]] = {"openai-whisper": _OPENAI, "whisper.cpp": _CPP}
"""Of each program, its flags that have another name here or none, and what to use instead.

A test compares them with the tables of docs/recipes.md.
"""


def refuse_foreign(words: Sequence[str]) -> None:
    """Tell who uses another program's option what it is called here.

    It must look before argparse does, which takes ``-osrt`` for ``-o srt``. Raises `ConfigError`.
    """
    cures = {
        flag: f"is {program}'s; streamd has {cure}"
        for program, rows in ELSEWHERE.items()
        for flags, cure in rows.items()
        for flag in flags.split()
    }
    for word in words:
        flag, *_ = word.split("=")
        if flag in cures:
            raise ConfigError(f"{flag} {cures[flag]}")
