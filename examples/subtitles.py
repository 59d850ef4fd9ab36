"""Write subtitles for a recording: python subtitles.py talk.m4a [talk.srt]."""

import sys
from pathlib import Path

from streamd import StreamdError, transcribe

if __name__ == "__main__":
    recording = Path(sys.argv[1])
    subtitles = Path(sys.argv[2]) if len(sys.argv) > 2 else recording.with_suffix(".srt")
    try:
        transcript = transcribe(recording)
        transcript.save(subtitles)
    except StreamdError as error:  # no such file, unknown ending, no model ...
        sys.exit(f"{error}")
    print(f"{len(transcript.segments)} segments in {transcript.language}: {subtitles}")
