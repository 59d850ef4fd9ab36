"""The running program: wiring, supervision, shutdown.

`live` is the daemon, `transcribe` the batch. Shutdown is a flush: all audio until now becomes
final, every listener gets it and the end of the session, then the process exits with 0. Only a
second interrupt skips that.
"""
