"""Captions in the language of each reader: translations of sentences, by Firefox's models.

`sentences` says what can be translated of a stream, `translator` translates it in a thread of its
own, `service` gives it to the readers of a session and `files` to transcripts; `store` has the
models. Nothing outside knows the library.
"""
