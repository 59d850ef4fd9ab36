"""Transcribes whole recordings, window after window, as openai-whisper's `transcribe` does.

With the same options, tokens, segments and word times are the same, unless the caller says where
there is speech: then speech that a window's text leaves out is decoded again. Times are float
seconds since the recording began, computed in openai-whisper's order: words often last exactly as
long as one of its rules allows, and then its rounding decides. Columns are those of log-mel, 10 ms.
"""
