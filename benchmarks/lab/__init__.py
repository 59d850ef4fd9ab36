"""The measuring lab: what several programs in ``benchmarks/`` share.

It plays sound to the daemon's own streams on a real or a simulated clock, keeps an event log of
what they publish and computes latencies, error rates and loads from it.
"""
