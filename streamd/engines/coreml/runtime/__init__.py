"""Runs a built encoder on a Mac's Neural Engine, in a process of its own.

`library` is Core ML by way of coremltools, `encoder` runs the packages in a worker
(streamd/engines/supervised/worker.py), and `hybrid` is an engine of that worker and one that
decodes.
"""
