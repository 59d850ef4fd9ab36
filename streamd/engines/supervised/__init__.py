"""Engines in a process of their own, which may crash, hang or compute nonsense.

`worker` has the process, `remote` an engine in it, `switchover` the way from the CPU to such an
engine and back. Nothing here knows which library computes.
"""
