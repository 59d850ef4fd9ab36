"""What is kept of sessions, so that they survive the process that serves them.

`journals` says what the sessions demand of a store. Of two stores, `database` keeps finals in
SQLite on this machine's disk, and `bus` in NATS JetStream (`jetstream`), which several machines
share. `lines` is what both keep, and its JSON form.
"""
