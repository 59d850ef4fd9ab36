"""What was said on this machine, if its owner keeps it: text, words, speakers and audio.

`tables` is the database, a journal with an index of its words; `sounds` writes the audio beside
it. `shelf` lists, reads, searches and deletes sessions, for `streamd library`, the page and
programs (`rest`, `assistant`). `edits` changes them, `jobs` are files to be transcribed.
"""
