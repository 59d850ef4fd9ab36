"""The layouts in which Whisper models lie on disk, one module each; `store` chooses.

Each reads what its files say, without executing anything in them and without believing a size
before it has been compared with the file's, and gives a `Model` or raises a `ModelError` that
names the file.
"""
