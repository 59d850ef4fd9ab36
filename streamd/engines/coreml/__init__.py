"""Whisper's encoder on Core ML: packages for the Neural Engine, and the runtime that uses them.

`package` describes a built encoder and reads one, without Core ML. `networks` defines the graphs;
`package_builder` makes packages of them on any machine that has coremltools. `runtime` runs
packages on a Mac. ``tests/coreml`` evaluates what was saved without a Mac and compares it with the
reference.
"""
