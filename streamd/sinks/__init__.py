"""Outputs of transcript events: the terminal, standard output, files.

A sink receives the events in the order of the stream, writes at once and flushes. It blocks as long
as its stream blocks, and may not be called from two threads at a time.
"""

from streamd.sinks.sink import About, CaptionSink, Format, Sink

__all__ = ["About", "CaptionSink", "Format", "Sink"]
