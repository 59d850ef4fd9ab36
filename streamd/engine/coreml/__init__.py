"""Whisper on Core ML: packages for the Neural Engine and the GPU of a Mac, and what runs them.

`package` says what a built model looks like and needs no Core ML to read one; everything else codes
against it. `encoder` and `decoder` describe the networks, `build` makes packages of them on any
machine that has coremltools. `runtime` runs packages on a Mac. What was saved is evaluated,
compared with the reference and checked against the Neural Engine's rules in ``tests/coreml``.
"""
