"""Readers of the layouts in which Whisper models are distributed; `store.layouts` chooses one.

None executes anything in a file or trusts a size in it before comparing it with the file's own.
Each has three functions, which raise a `ModelError` that names the file if it is missing, damaged
or of another architecture: `outline` describes the model in little time; `contents` opens its
files, and is a context because parameters are read while it is open; `files` lists what both read,
which an import copies and on which a prepared model depends.
"""
