"""One stream of audio: frames in, windows out, hypotheses in, events out; no I/O, clock or thread.

`session` has the `Session`, which owns all state of a stream. `gate` says which frames are speech,
`segmenter` where an `utterance` begins and ends, `segment` has the stages of the one that is being
transcribed, and `text` its words. `rules` say what a hypothesis goes through, `commit` which words
will never change, `captions` writes events, and `ring` keeps the audio. `language`, `who` and
`spelling` decide about one thing each. `channels` has a session for each channel, and `clips`
divides whole recordings. Read `simple` first: the shortest session that keeps the promises.
"""

from streamd.session.session import Session

__all__ = ["Session"]
