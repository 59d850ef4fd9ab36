"""Dictate into the text field of a window: python dictation.py [talk.wav]."""

import sys
import tkinter

from streamd import Captioner, CaptionSession, Microphone

POLL_MS = 50


class Dictation:
    """Types what is said at the cursor's place, and replaces what is still tentative."""

    def __init__(self, field: tkinter.Text, session: CaptionSession) -> None:
        self._field, self._session = field, session
        field.mark_set("tentative", "end-1c")
        field.mark_gravity("tentative", "left")  # it stays before what is inserted there

    def update(self) -> None:
        """Show what has come since the last time; never waits."""
        for event in self._session.poll():
            self._field.delete("tentative", "end-1c")
            self._field.insert("end-1c", event.text)
            if event.is_final:
                self._field.insert("end-1c", " ")
                self._field.mark_set("tentative", "end-1c")

    def keep_updating(self) -> None:
        """Update regularly, from the window's own loop."""
        self.update()
        self._field.after(POLL_MS, self.keep_updating)


if __name__ == "__main__":
    window = tkinter.Tk()
    text = tkinter.Text(window)
    text.pack()
    audio = sys.argv[1] if len(sys.argv) > 1 else Microphone()
    with Captioner() as captions:
        Dictation(text, captions.listen(audio)).keep_updating()
        window.mainloop()
