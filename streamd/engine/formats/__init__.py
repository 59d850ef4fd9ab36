"""Readers of the layouts in which Whisper models are distributed; `store.layouts` chooses one.

None executes anything in a file or trusts a size in it before comparing it with the file's own.
Each has three functions, which raise a `ModelError` that names the file: `load` gives the whole
model, `outline` describes it in little time, and `files` lists the files that `load` reads, which
an import copies and on which a prepared model depends.
"""
