"""Which windows a worker has: no decoder finds the tokens of another in its cache."""

from dataclasses import dataclass, field
from weakref import ref

import numpy as np
import pytest

from streamd.engines.coreml.runtime.core_ml_engine import CacheSlots
from streamd.engines.coreml.runtime.worker import WorkerLostError


@dataclass(eq=False)
class Worker:
    slots: dict[int, int] = field(default_factory=dict)
    n_encoded: int = 0
    n_known: list[int] = field(default_factory=list)

    def encode(self, slot, mel, extent, n_known):
        self.slots[slot] = int(mel[0, 0])
        self.n_encoded += 1
        self.n_known.append(n_known)


@dataclass(eq=False)
class Decoder:
    forgot: int = 0

    def forget(self):
        self.forgot += 1


@dataclass(eq=False)
class Encoded:
    mel: np.ndarray
    extent: None = None
    previous: ref | None = None
    n_reused: int = 0


def window(number: int, previous: Encoded | None = None) -> Encoded:
    mel = np.full((80, 4), number, np.float32)
    return Encoded(mel, previous=ref(previous) if previous else None, n_reused=30)


def test_a_window_keeps_its_slot_and_its_decoder_its_cache():
    slots, worker, encoded, decoder = CacheSlots(), Worker(), window(7), Decoder()
    found = {slots.take(worker, encoded, decoder) for _ in range(3)}
    assert [worker.slots[slot] for slot in found] == [7]
    assert (worker.n_encoded, decoder.forgot) == (1, 1)


def test_another_decoder_of_the_window_begins_with_nothing():
    slots, worker, encoded = CacheSlots(), Worker(), window(7)
    first, second = Decoder(), Decoder()
    for decoder in (first, second, first):
        slots.take(worker, encoded, decoder)
    assert (first.forgot, second.forgot, worker.n_encoded) == (2, 1, 1)


def test_the_slot_of_a_window_that_is_over_is_reused_first():
    slots, worker = CacheSlots(), Worker()
    over, kept = window(1), window(2)
    slots.take(worker, over)
    slots.take(worker, kept)
    del over
    assert slots.take(worker, window(3)) == 0
    assert worker.slots == {0: 3, 1: 2}


def test_windows_without_a_slot_are_encoded_again():
    slots, worker, decoders = CacheSlots(), Worker(), [Decoder() for _ in range(9)]
    windows = [window(number) for number in range(9)]
    for _ in range(2):
        for number, (encoded, decoder) in enumerate(zip(windows, decoders, strict=True)):
            assert worker.slots[slots.take(worker, encoded, decoder)] == number
    assert len(worker.slots) < len(windows)
    assert worker.n_encoded == 18
    assert [decoder.forgot for decoder in decoders] == [2] * 9


def test_a_window_takes_the_slot_of_the_one_before_it_and_what_is_known():
    slots, worker, other, first = CacheSlots(), Worker(), window(1), window(2)
    slots.take(worker, other)
    assert slots.take(worker, first) == 1
    for number in (3, 4):
        following = window(number, first)
        assert slots.take(worker, following) == 1
        first = following
    assert (worker.slots, worker.n_known) == ({0: 1, 1: 4}, [0, 0, 30, 30])


def test_nothing_is_known_of_a_window_whose_slot_is_another_windows():
    slots, worker, first = CacheSlots(), Worker(), window(1)
    slots.take(worker, first)
    both = [window(number, first) for number in (2, 3)]
    for each in both:
        slots.take(worker, each)
    assert (worker.slots, worker.n_known) == ({0: 2, 1: 3}, [0, 30, 0])
    # The next worker computes all of it.
    slots.take(again := Worker(), both[0])
    assert again.n_known == [0]


def test_nothing_is_known_of_a_window_that_failed():
    class Dying(Worker):
        def encode(self, *args):
            raise WorkerLostError

    slots, first, worker = CacheSlots(), window(1), Worker()
    slots.take(worker, first)
    worker.encode = Dying().encode
    with pytest.raises(WorkerLostError):
        slots.take(worker, second := window(2, first))
    del worker.encode
    slots.take(worker, second)
    assert worker.n_known == [0, 0]


def test_another_worker_has_nothing():
    slots, encoded, decoder = CacheSlots(), window(7), Decoder()
    for worker in (Worker(), Worker()):
        slot = slots.take(worker, encoded, decoder)
        assert worker.slots == {slot: 7}
    assert decoder.forgot == 2
