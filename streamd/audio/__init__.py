"""Audio of any shape in, whole 20 ms frames out; and the memory of a stream's last minutes.

`pcm` turns raw bytes into samples, `framer` samples of any rate, width and channel count into
frames, `resample` changes the rate, `ring` keeps frames under their numbers. No part of it knows
where the audio comes from or what it is for.
"""
