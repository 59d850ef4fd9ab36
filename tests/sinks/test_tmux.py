"""The renderer in a real terminal that wraps anew when it is resized, which pyte does not."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

FINALS = [
    "first final, of more than forty characters, so that it wraps",
    "二番目" * 20,
    *(f"final number {n}" for n in range(20)),
]
PARTIAL = "".join(f"<{i:03}>" for i in range(60))

PROGRAM = f"""
import os, signal, subprocess, sys, tty
from streamd.events import Final, Partial
from streamd.sinks.text import Look
from streamd.sinks.terminal import TerminalSink

tty.setcbreak(0)
captions = TerminalSink(sys.stdout, Look())

def drawn():
    # The terminal answers when it has seen everything before the question.
    os.write(1, b"\\x1b[6n")
    while os.read(0, 1) != b"R":
        pass
    subprocess.run(["tmux", "wait-for", "-S", "drawn"], check=True)

def say(seg, text):
    for end in range(1, len(text), 7):
        at = 5000 * seg  # each is a paragraph
        captions.write(Partial(seg=seg, rev=end, start_ms=at, end_ms=at, text=text[:end], stable=0))

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
for seg, text in enumerate({FINALS!r}):
    say(seg, text)
    captions.write(Final(seg=seg, start_ms=5000 * seg, end_ms=5000 * seg, text=text, language="en"))
say(99, {PARTIAL!r} + "gone again")
with captions.above():
    print("a log line", file=sys.stderr)
at = 5000 * 99
captions.write(Partial(seg=99, rev=999, start_ms=at, end_ms=at, text={PARTIAL!r}, stable=10))
drawn()
while True:
    signal.sigwait([signal.SIGWINCH])
    captions.redraw()
    drawn()
"""


@pytest.fixture
def tmux():
    """Runs a tmux command on a server of its own and gives what it prints."""
    if shutil.which("tmux") is None:
        if os.environ.get("STREAMD_REQUIRE_SYSTEM") == "1":
            pytest.fail("needs tmux: apt-get install tmux")
        pytest.skip("needs tmux: apt-get install tmux")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path has to be short
        server = ["tmux", "-S", f"{folder}/socket", "-f", os.devnull]

        def run(*args):
            run = subprocess.run([*server, *args], check=True, stdout=subprocess.PIPE, timeout=60)
            return run.stdout.decode()

        yield run
        subprocess.run([*server, "kill-server"], capture_output=True)


def test_resizing_a_real_terminal_leaves_no_stale_row(tmux, tmp_path):
    def rows():
        return tmux("capture-pane", "-p", "-S", "-").rstrip("\n").split("\n")

    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    root = Path(__file__).parents[2]
    environment = ["-e", f"PYTHONPATH={root}", "-e", "PYTHONUTF8=1"]
    window = ["-d", "-x", "80", "-y", "24", "-c", str(root)]
    tmux("new-session", *window, *environment, sys.executable, str(program))
    tmux("wait-for", "drawn")
    for columns, lines in [(80, 24), (40, 24), (120, 24), (60, 12), (60, 24), (200, 30)]:
        if (columns, lines) != (80, 24):
            tmux("resize-window", "-x", str(columns), "-y", str(lines))
            tmux("wait-for", "drawn")
        partial = [PARTIAL[i : i + columns] for i in range(0, len(PARTIAL), columns)]
        # The last final stands below the log line, since it might have gone on.
        above = "".join([*FINALS[:-1], "a log line", FINALS[-1]])
        # Blanks go, because capture-pane leaves them out at the end of a row.
        assert "".join(rows()[: -len(partial)]).replace(" ", "") == above.replace(" ", "")
        assert rows()[-len(partial) :] == partial
