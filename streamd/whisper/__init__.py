"""Whisper: from the sound of a window, or of a whole recording, to words with times.

`recognizer` turns a window of a stream into a hypothesis: `mel` makes the spectrogram, an engine
(`engine`) computes the encoder and the decoder, and `decode` searches for the text: `rules` say
which tokens are allowed, `greedy` and `beam` choose among them, on the `paths` of a shared cache.
`view` is the window as the decoder gets it, and `attempts` are the ways to decode it again.
`words` gives the words their times, and `guards` distrusts what a confused decoder writes.
`longform` transcribes whole recordings as openai-whisper does. All of it computes only.
"""
