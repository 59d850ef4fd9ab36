"""Transcribes whole recordings, window after window, as openai-whisper's `transcribe` does.

With the same options, tokens, segments and word times are the same, unless the caller says where
there is speech. Then speech that a window's text leaves out is decoded again, and the clips do not
depend on each other: the decoder runs several at once. `transcriber` begins, `reader` reads one
clip after the other, `segments` divides the text of a window, and `schedule` runs several readers
at once. Times are float seconds since the recording began, computed in openai-whisper's order:
words often last exactly as long as one of its rules allows, and then its rounding decides. Columns
are those of log-mel, 10 ms.
"""

from streamd.whisper.longform.reader import LONGEST_WINDOW
from streamd.whisper.longform.schedule import TranscribedWindow
from streamd.whisper.longform.transcriber import Transcriber

__all__ = ["LONGEST_WINDOW", "TranscribedWindow", "Transcriber"]
