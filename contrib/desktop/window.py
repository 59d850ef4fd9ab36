#!/usr/bin/env python3
"""Captions in a small window that stays above all others, with what was said before.

    pip install PySide6-Essentials
    python contrib/desktop/window.py                                # caption the microphone
    python contrib/desktop/window.py ws://127.0.0.1:8765            # what a streamd captions

Drag it with the mouse; Escape closes it. Under Wayland no program may stay above others, so it runs
through XWayland there (``QT_QPA_PLATFORM=xcb``). Tried under Xvfb only.
"""

import asyncio
import os
import subprocess
import sys
import threading
from contextlib import aclosing

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFont,
    QGuiApplication,
    QKeyEvent,
    QMouseEvent,
    QTextCharFormat,
    QTextCursor,
)
from PySide6.QtWidgets import QApplication, QTextEdit

from streamd.errors import StreamdError
from streamd.events import Event, Final, Partial
from streamd.labels import by_speaker
from streamd.server.client import watch
from streamd.sinks.text import clean

ADDRESS = "ws://127.0.0.1:8765"
FINAL, TENTATIVE = "#ffffff", "#9a9a9a"
_MOST_PARAGRAPHS = 2000
_LINES = 3
_MOST_TRIES = 60
"""To connect, a second apart, to a streamd that prepares its model."""


class CaptionWindow(QTextEdit):
    """Finals in white, what may still change in grey; a dash where another speaker begins."""

    heard = Signal(object)  # an `Event`, or the text of an error, from another thread

    def __init__(self) -> None:
        super().__init__(readOnly=True)
        self.setWindowTitle("streamd")
        self.setWindowFlags(Qt.WindowType.FramelessWindowHint | Qt.WindowType.WindowStaysOnTopHint)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setStyleSheet("background: #111; border: 0; padding: 6px")
        self.setFont(QFont("Sans", 22))
        self.document().setMaximumBlockCount(_MOST_PARAGRAPHS)
        self.document().setDocumentMargin(0)
        self._n_settled = 0  # characters of finals
        self._speaker: int | None = None
        self.heard.connect(self.take)
        screen = QGuiApplication.primaryScreen().availableGeometry()
        height = self.fontMetrics().lineSpacing() * _LINES + 12
        self.setGeometry(
            screen.width() // 6, screen.bottom() - height - 40, screen.width() * 2 // 3, height
        )

    def take(self, event: Event | str) -> None:
        """Show a caption in place of the one before it, unless that is final."""
        if isinstance(event, str):
            self._write([(event, TENTATIVE)])
        if not isinstance(event, Partial | Final):
            return
        runs, speaker = [], self._speaker
        for part in by_speaker(event):
            is_other = part.speaker and speaker and part.speaker != speaker
            stable = len(part.text) if isinstance(part, Final) else part.stable
            text = clean(part.text)
            runs += [
                ("\n– " if is_other else "", FINAL),
                (text[:stable], FINAL),
                (text[stable:], TENTATIVE),
            ]
            speaker = part.speaker or speaker
        self._write([*runs, (" ", FINAL)])
        if isinstance(event, Final):
            self._speaker = speaker
            self._n_settled = self.document().characterCount() - 1

    def _write(self, runs: list[tuple[str, str]]) -> None:
        bar = self.verticalScrollBar()
        is_at_end = bar.value() >= bar.maximum() - 4
        cursor = QTextCursor(self.document())
        cursor.setPosition(min(self._n_settled, self.document().characterCount() - 1))
        cursor.movePosition(QTextCursor.MoveOperation.End, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        for text, colour in runs:
            form = QTextCharFormat()
            form.setForeground(QColor(colour))
            cursor.insertText(text, form)
        if is_at_end:
            bar.setValue(bar.maximum())

    def mousePressEvent(self, event: QMouseEvent) -> None:  # noqa: N802 - Qt calls it so
        """Let the window be dragged."""
        self.windowHandle().startSystemMove()

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 - Qt calls it so
        """Close at Escape."""
        if event.key() == Qt.Key.Key_Escape:
            self.close()
        else:
            super().keyPressEvent(event)


async def follow(window: CaptionWindow, address: str, *, starts: bool) -> None:
    """Show the captions of a streamd, which may have to start first, until its session ends."""
    for n_left in reversed(range(_MOST_TRIES if starts else 1)):
        try:
            async with aclosing(watch(address)) as events:
                async for event in events:
                    window.heard.emit(event)
            return
        except StreamdError as error:
            if not n_left:
                window.heard.emit(str(error))
        await asyncio.sleep(1)


def main() -> int:
    """Show the captions of the given address, or of a streamd that is started."""
    if os.environ.get("WAYLAND_DISPLAY") and os.environ.get("DISPLAY"):
        os.environ.setdefault("QT_QPA_PLATFORM", "xcb")
    address = next(iter(sys.argv[1:]), "")
    app, server = QApplication(sys.argv[:1]), None
    window = CaptionWindow()
    window.show()
    if not address:
        server = subprocess.Popen(
            [sys.executable, "-m", "streamd", "-q"], stdout=subprocess.DEVNULL
        )
    work = follow(window, address or ADDRESS, starts=not address)
    threading.Thread(target=asyncio.run, args=(work,), daemon=True).start()
    try:
        return app.exec()
    finally:
        if server is not None:
            server.terminate()


if __name__ == "__main__":
    raise SystemExit(main())
