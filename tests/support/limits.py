"""Limits of the system that a process may meet."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_free_descriptor() -> Iterator[None]:
    """Let no file be opened inside the block; those that are open can be used."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as lowest:
        n_open = lowest.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (n_open, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
