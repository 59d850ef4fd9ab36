"""The layouts in which Whisper models lie on disk, one module each; `store` chooses.

Each reads what its files say, without executing anything in them and without believing a size
before it has been compared with the file's, and gives a `Model` or raises a `ModelError` that
names the file. `load` does that; `outline` says in little time what the model is, and `files` which
files are read, so that these are what an import copies and what a prepared model depends on.
"""
