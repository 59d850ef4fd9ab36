"""Answer each sentence when it is final: python bot.py [talk.wav]."""

import sys

from streamd import Captioner, Microphone


def answer(said: str) -> str:
    """Return what to do about a sentence; put a language model here."""
    words = said.lower().strip(".!?").split()
    return f"The {words[-1]} is {'on' if 'on' in words else 'off'}." if "turn" in words else ""


if __name__ == "__main__":
    audio = sys.argv[1] if len(sys.argv) > 1 else Microphone()
    with Captioner(options={"endpoint-ms": 600}) as captions:  # ms of silence that end a sentence
        for event in captions.listen(audio):
            if event.is_final and (reply := answer(event.text)):
                print(f"> {event.text}\n{reply}")
