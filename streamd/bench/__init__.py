"""Measures how fast a model runs on this machine, and which encoder context it can do with.

`streamd bench`, `calibrate`, `doctor` and `models check` use it. Experiments with streams,
latencies and load are programs in ``benchmarks/``.
"""
