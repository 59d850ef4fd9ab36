"""Runs a built model on a Mac: an engine in this process, Core ML in a process of its own.

``coremltools`` holds Python's lock while it loads and predicts, and Core ML can crash its process.
So a worker process (`worker`, `programs`) does that. Its supervisor replaces it when it
dies or hangs, and the `engine` has the new one compute again what was lost, so that the search does
not notice. `switchover` moves captions to Core ML without interrupting them, once it is loaded and
proven to be right.
"""
