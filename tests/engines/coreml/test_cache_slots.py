"""Which windows a worker has, and which tokens are in their caches."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from weakref import ref

import numpy as np
import pytest

from streamd.engines.coreml.runtime.core_ml_engine import CacheSlots
from streamd.engines.coreml.runtime.worker import WorkerLostError

N_COLUMNS = 9


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
class Encoded:
    mel: np.ndarray
    extent: None = None
    previous: ref | None = None
    n_reused: int = 0


def window(number: int, previous: Encoded | None = None) -> Encoded:
    mel = np.full((80, 4), number, np.float32)
    return Encoded(mel, previous=ref(previous) if previous else None, n_reused=30)


def cache_slots() -> CacheSlots:
    return CacheSlots(N_COLUMNS)


def test_a_window_keeps_its_slot_and_what_is_in_its_cache():
    slots, worker, encoded = cache_slots(), Worker(), window(7)
    _, columns = slots.take(worker, encoded)
    assert not columns.any()
    columns[3] = slots.number(1)[0]
    for _ in range(2):
        slot, again = slots.take(worker, encoded)
        assert worker.slots[slot] == 7
        assert again.tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert worker.n_encoded == 1


@dataclass(eq=False)
class Decoder:
    runs: np.ndarray


def test_a_decoder_may_begin_while_another_one_runs():
    slots, before = cache_slots(), sys.getswitchinterval()
    alive = [Decoder(slots.number(1)) for _ in range(3000)]
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as pool:
            adding = [pool.submit(slots.add, decoder) for decoder in alive]
            while not adding[-1].done():
                slots.wanted()
    finally:
        sys.setswitchinterval(before)
    assert sorted(slots.wanted()) == list(range(1, 3001))


def test_the_next_window_finds_what_is_in_the_cache_of_the_one_before():
    slots, worker, first = cache_slots(), Worker(), window(1)
    _, columns = slots.take(worker, first)
    columns[:] = slots.number(N_COLUMNS)
    second, third = (window(number, first) for number in (2, 3))
    assert slots.take(worker, second)[1].tolist() == list(range(1, N_COLUMNS + 1))
    assert not slots.take(worker, third)[1].any(), "the slot is another window's"
    assert not slots.take(Worker(), second)[1].any()


def test_the_slot_of_a_window_that_is_over_is_reused_first():
    slots, worker = cache_slots(), Worker()
    over, kept = window(1), window(2)
    slots.take(worker, over)
    slots.take(worker, kept)
    del over
    assert slots.take(worker, window(3))[0] == 0
    assert worker.slots == {0: 3, 1: 2}


def test_windows_without_a_slot_are_encoded_again():
    slots, worker = cache_slots(), Worker()
    windows = [window(number) for number in range(9)]
    for _ in range(2):
        for number, encoded in enumerate(windows):
            assert worker.slots[slots.take(worker, encoded)[0]] == number
    assert len(worker.slots) < len(windows)
    assert worker.n_encoded == 18


def test_a_window_takes_the_slot_of_the_one_before_it_and_what_is_known():
    slots, worker, other, first = cache_slots(), Worker(), window(1), window(2)
    slots.take(worker, other)
    assert slots.take(worker, first)[0] == 1
    for number in (3, 4):
        following = window(number, first)
        assert slots.take(worker, following)[0] == 1
        first = following
    assert (worker.slots, worker.n_known) == ({0: 1, 1: 4}, [0, 0, 30, 30])


def test_nothing_is_known_of_a_window_whose_slot_is_another_windows():
    slots, worker, first = cache_slots(), Worker(), window(1)
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

    slots, first, worker = cache_slots(), window(1), Worker()
    slots.take(worker, first)
    worker.encode = Dying().encode
    with pytest.raises(WorkerLostError):
        slots.take(worker, second := window(2, first))
    del worker.encode
    slots.take(worker, second)
    assert worker.n_known == [0, 0]


def test_another_worker_has_nothing():
    slots, encoded = cache_slots(), window(7)
    for worker in (Worker(), Worker()):
        slot, _ = slots.take(worker, encoded)
        assert worker.slots == {slot: 7}
