"""Whisper on Core ML: packages for the Neural Engine and the GPU of a Mac, and what runs them.

`package` says what a built model looks like and needs no Core ML to read one; everything else codes
against it. `encoder` and `decoder` describe the networks, `build` makes packages of them on any
machine that has coremltools. There `interpreter` evaluates what was saved, `verify` compares it
with the reference, and `lint` knows the Neural Engine's rules. `runtime` runs packages on a Mac.
"""
