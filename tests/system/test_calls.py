"""Calls in threads of their own."""

import subprocess
import sys

BEGINS = """
import threading
from streamd.system.calls import in_thread

in_thread(lambda: print("done", threading.Event().wait(0.3)))
"""


def test_the_end_of_a_program_waits_for_native_calls():
    """Otherwise Python frees the model's runtime under the thread, which crashes."""
    ended = subprocess.run([sys.executable, "-c", BEGINS], stdout=subprocess.PIPE, check=True)
    assert ended.stdout == b"done False\n"
