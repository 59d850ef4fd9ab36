"""The renderer in a real terminal that wraps anew when it is resized, which pyte does not."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

tmux_missing = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

FINALS = [
    "first final, of more than forty characters, so that it wraps",
    "二番目" * 20,
    *(f"final number {n}" for n in range(20)),
]
PARTIAL = "".join(f"<{i:03}>" for i in range(60))

PROGRAM = f"""
import os, signal, subprocess, sys, termios, tty
from streamd.events import Final, Partial
from streamd.sinks.look import Look
from streamd.sinks.terminal import open_captions

tty.setcbreak(0)
captions = open_captions(sys.stdout, Look(), form="text", environ=os.environ)

def drawn():
    # The terminal answers when it has seen everything before the question.
    os.write(1, b"\\x1b[6n")
    while os.read(0, 1) != b"R":
        pass
    subprocess.run(["tmux", "-S", sys.argv[1], "wait-for", "-S", "drawn"], check=True)

def say(seg, text):
    for end in range(1, len(text), 7):
        captions.write(Partial(seg=seg, rev=end, start_ms=0, end_ms=0, text=text[:end], stable=0))

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
for seg, text in enumerate({FINALS!r}):
    say(seg, text)
    captions.write(Final(seg=seg, start_ms=0, end_ms=0, text=text, language="en"))
say(99, {PARTIAL!r} + "gone again")
with captions.above():
    print("a log line", file=sys.stderr)
captions.write(Partial(seg=99, rev=999, start_ms=0, end_ms=0, text={PARTIAL!r}, stable=10))
drawn()
while True:
    signal.sigwait([signal.SIGWINCH])
    captions.redraw()
    drawn()
"""


@tmux_missing
def test_resizing_a_real_terminal_leaves_no_stale_row(tmp_path):
    socket = tmp_path / "tmux"

    def tmux(*args):
        command = ["tmux", "-S", str(socket), "-f", "/dev/null", *args]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=60
        ).stdout

    def rows():
        return tmux("capture-pane", "-p", "-S", "-").rstrip("\n").split("\n")

    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    root = Path(__file__).parents[2]
    tmux(
        "new-session", "-d", "-x", "80", "-y", "24", "-c", str(root), "-e", f"PYTHONPATH={root}",
        sys.executable, str(program), str(socket),
    )  # fmt: skip
    try:
        tmux("wait-for", "drawn")
        for columns, lines in [(80, 24), (40, 24), (120, 24), (60, 12), (60, 24), (200, 30)]:
            if (columns, lines) != (80, 24):
                tmux("resize-window", "-x", str(columns), "-y", str(lines))
                tmux("wait-for", "drawn")
            partial = [PARTIAL[i : i + columns] for i in range(0, len(PARTIAL), columns)]
            above = "".join([*FINALS, "a log line"])
            # Blanks go, because capture-pane leaves them out at the end of a row.
            assert "".join(rows()[: -len(partial)]).replace(" ", "") == above.replace(" ", "")
            assert rows()[-len(partial) :] == partial
    finally:
        tmux("kill-server")
