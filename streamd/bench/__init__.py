"""Measures streamd as users have it: one step, a stream, many streams.

The daemon's own stations run, on a real clock or on a simulated one; what is measured comes out of
an event log. `streamd bench` and the programs in ``benchmarks/`` are thin doors to it.
"""
