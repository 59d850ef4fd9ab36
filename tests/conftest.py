"""What all tests share."""

import os

from hypothesis import settings

# Machines are slow and noisy: no test asserts on time. CI draws the same examples every time.
settings.register_profile("local", deadline=None, max_examples=60)
settings.register_profile("ci", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
