"""Which windows a worker has: nobody's tokens are taken for somebody else's."""

from dataclasses import dataclass, field

import numpy as np

from streamd.engine.coreml.runtime.seats import Heard, Seats


@dataclass(eq=False)
class Worker:
    seats: dict[int, int] = field(default_factory=dict)
    encoded: int = 0

    def encode(self, seat, mel):
        self.seats[seat] = int(mel[0, 0])
        self.encoded += 1


@dataclass(eq=False)
class Decoder:
    forgot: int = 0

    def forget(self):
        self.forgot += 1


def window(number: int) -> Heard:
    return Heard(np.full((80, 4), number, np.float32))


def test_a_window_keeps_its_seat_and_its_decoder_its_cache():
    seats, worker, heard, decoder = Seats(), Worker(), window(7), Decoder()
    found = {seats.take(worker, heard, decoder) for _ in range(3)}
    assert [worker.seats[seat] for seat in found] == [7]
    assert (worker.encoded, decoder.forgot) == (1, 1)


def test_another_decoder_of_the_window_begins_with_nothing():
    seats, worker, heard = Seats(), Worker(), window(7)
    first, second = Decoder(), Decoder()
    for decoder in (first, second, first):
        seats.take(worker, heard, decoder)
    assert (first.forgot, second.forgot, worker.encoded) == (2, 1, 1)


def test_the_seat_of_a_window_that_is_over_is_given_away_first():
    seats, worker = Seats(), Worker()
    over, kept = window(1), window(2)
    seats.take(worker, over)
    seats.take(worker, kept)
    del over
    assert seats.take(worker, window(3)) == 0
    assert worker.seats == {0: 3, 1: 2}


def test_windows_without_a_seat_are_encoded_again():
    seats, worker, decoders = Seats(), Worker(), [Decoder() for _ in range(9)]
    windows = [window(number) for number in range(9)]
    for _ in range(2):
        for number, (heard, decoder) in enumerate(zip(windows, decoders, strict=True)):
            assert worker.seats[seats.take(worker, heard, decoder)] == number
    assert len(worker.seats) < len(windows)
    assert worker.encoded == 18
    assert [decoder.forgot for decoder in decoders] == [2] * 9


def test_another_worker_has_nothing():
    seats, heard, decoder = Seats(), window(7), Decoder()
    for worker in (Worker(), Worker()):
        seat = seats.take(worker, heard, decoder)
        assert worker.seats == {seat: 7}
    assert decoder.forgot == 2
