"""Measures models for the commands bench, doctor and models check.

Experiments with streams, latencies and load are programs in ``benchmarks/``.
"""
