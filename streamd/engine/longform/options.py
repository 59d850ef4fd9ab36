"""What can be chosen about a whole recording, beyond how each window is decoded."""

from dataclasses import dataclass

from streamd.search.words import APPENDED, PREPENDED


@dataclass(frozen=True, slots=True)
class LongformOptions:
    """How windows follow each other. The defaults are openai/whisper's unless a note says more.

    Attributes
    ----------
    condition_on_previous_text : the text so far is the prompt of the next window
    initial_prompt : text before the first window
    carry_initial_prompt : ... and before all others
    prefix : text that the first window begins with and that is not written again (openai-whisper
        begins every window with it; SYSTRAN/faster-whisper the first, as here)
    hotwords : words to expect, before the prompt of every window but one with a prefix
        (SYSTRAN/faster-whisper)
    word_timestamps : words with times, from which also follows where the next window starts; on,
        since subtitles and confidences need them
    prepend_punctuations, append_punctuations : marks that are joined to the word behind and before
    hallucination_silence_ms : pass over silence of more than this around words that look dreamt up;
        None: do not. Needs `word_timestamps`.
    """

    condition_on_previous_text: bool = True
    initial_prompt: str = ""
    carry_initial_prompt: bool = False
    prefix: str = ""
    hotwords: str = ""
    word_timestamps: bool = True
    prepend_punctuations: str = PREPENDED
    append_punctuations: str = APPENDED
    hallucination_silence_ms: int | None = None
