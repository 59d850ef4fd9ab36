"""vosk-server has no package of clients: this is the conversation of its example, test.py."""

import json

from websockets.sync.client import connect

from tests.foreign.conftest import assert_same_words


def test_a_recording(server, speech, native, came_back):
    audio = speech.tobytes()
    answers = []
    with connect(f"{server.ws}/?token={server.token}") as websocket:
        websocket.send('{ "config" : { "sample_rate" : 16000 } }')
        for begin in range(0, len(audio), 8000):
            websocket.send(audio[begin : begin + 8000])
            answers.append(json.loads(websocket.recv()))
        websocket.send('{"eof" : 1}')
        answers.append(json.loads(websocket.recv()))
        assert list(websocket) == []  # closed, and well
    assert all(answer.keys() in ({"partial"}, {"text"}) for answer in answers)
    text = " ".join(answer["text"] for answer in answers if answer.get("text"))
    same = assert_same_words(text, native)
    n_partials = sum("partial" in answer for answer in answers)
    came_back(
        "websockets",
        "the conversation of vosk-server's test.py",
        f"{n_partials} partial and {len(answers) - n_partials} final results; {same}",
    )
