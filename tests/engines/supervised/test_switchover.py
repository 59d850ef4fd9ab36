"""Captions move to a fast engine and back without a difference, whatever that engine does."""

import gc
import logging
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from streamd.engines.reference import ReferenceEngine
from streamd.engines.supervised import switchover
from streamd.engines.supervised.remote import DroppedNumbers, RemoteEngine, ServedEngine
from streamd.engines.supervised.switchover import NotFasterError, Patience, SwitchingEngine
from streamd.engines.supervised.worker import Worker
from streamd.errors import EngineError
from streamd.whisper.engine import Pass, run_in_order
from streamd.whisper.longform.schedule import OneByOne
from tests.support.supervised import FaultyCandidate, left, reference, workers

pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def candidate(tmp_path) -> FaultyCandidate:
    return FaultyCandidate(tmp_path)


@pytest.fixture
def switching() -> Iterator[SwitchingEngine]:
    engine = SwitchingEngine(reference())
    yield engine
    engine.close()


def started(switching, *candidates, judge=lambda engine: "", **patience) -> SwitchingEngine:
    """When it is settled which engine serves."""
    switching.thread = switching.start([candidates], judge, Patience(**patience))
    assert switching.settled.wait(100)
    return switching


def warnings(caplog) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def answers(engine, *, adopts: bool = False) -> Iterator[np.ndarray]:
    """Windows that grow: each has a prompt, runs a tree, and one branch goes on.

    Who `adopts` takes the prompt over from the window before, as it was computed there.
    """
    mel = np.random.default_rng(0).normal(size=(80, 240)).astype(np.float32)
    features = decoder = None
    for n in (80, 100, 120):
        features = engine.encode(mel[:, : 2 * n], previous=features, n_reused=60 if decoder else 0)
        before, decoder = decoder, engine.decoder(features, 40)
        if not (adopts and before is not None and decoder.adopt(before, 5)):
            yield from run_in_order(decoder, [3, 1, 4, 1, 5], 0)
        tree = np.zeros((2, 40), np.bool_)
        tree[:, :5] = True
        tree[0, 30] = tree[1, 7] = True
        order = np.array([1, 0])
        yield from decoder.step(np.array([9, 2]), np.array([5, 5]), np.array([30, 7]), tree, order)
        one = np.zeros((1, 40), np.bool_)
        one[:, [0, 1, 2, 3, 4, 7, 12]] = True
        first, some = np.array([0]), np.array([9, 1, 7])
        asked = np.array([6]), np.array([6]), np.array([12]), one, first
        yield from decoder.step(*asked, some)


def assert_right(engine, *, adopts: bool = False) -> None:
    expected = answers(reference(), adopts=adopts)
    for mine, exact in zip(answers(engine, adopts=adopts), expected, strict=True):
        np.testing.assert_allclose(mine, exact, atol=2e-5)


def serves_again(switching) -> bool:
    """Wait until the fast engine is back."""
    engines = switching._engines
    with engines.changed:
        return engines.changed.wait_for(lambda: engines.fast is not None, 100)


def test_a_candidate_that_is_right_takes_over(switching, candidate, caplog):
    caplog.set_level(logging.INFO)
    assert_right(switching, adopts=True)  # on the CPU
    started(switching, candidate)
    assert isinstance(switching.current, RemoteEngine)
    assert caplog.messages[-1].startswith("captions moved to the faulty device after ")
    assert_right(switching, adopts=True)
    assert switching.n_cheap == reference().n_cheap
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    ("call", "fault", "why"),
    [
        ("encode", "raise", "the device is gone"),
        ("encode", "kill", "ended by SIGKILL"),
        ("encode", "hang", "did not answer within 2 s"),
        ("decoder", "raise", "the device is gone"),
        ("decoder", "kill", "ended by SIGKILL"),
        ("step", "raise", "the device is gone"),
        ("step", "kill", "ended by SIGKILL"),
        ("step", "hang", "did not answer within 2 s"),
        ("step", "nan", "computed infinity or NaN"),
    ],
)
def test_the_cpu_goes_on_with_the_window_of_an_engine_that_fails(
    switching, candidate, caplog, call, fault, why
):
    started(switching, candidate)
    assert_right(switching)
    switching.current.worker.answer_s = 2
    candidate.add(call, fault)
    assert_right(switching)
    assert_right(switching)
    assert warnings(caplog) == [f"the faulty device failed: {why}; captions continue on the CPU"]
    assert serves_again(switching), "it is loaded again at once"
    assert_right(switching)
    assert candidate.n_loads == 2
    assert len(warnings(caplog)) == 1


def batches(together) -> Iterator[np.ndarray]:
    """Four passes of three windows at once."""
    mel = np.random.default_rng(0).normal(size=(80, 240)).astype(np.float32)
    windows = [together.begin(lambda n=n: mel[:, :n])() for n in (80, 160, 240)]
    decoders = [together.engine.decoder(window, 8) for window in windows]
    for at in range(4):
        visible, place = np.arange(8)[None] <= at, np.array([at])
        asked = place, place, visible, np.array([0])
        passes = [Pass(each, place + n, *asked) for n, each in enumerate(decoders)]
        for answer in together(passes):
            yield from answer


@pytest.mark.parametrize(
    ("call", "fault"), [("", ""), ("encode", "kill"), ("step", "kill"), ("step", "nan")]
)
def test_windows_of_recordings_run_together_and_go_on_alone_on_the_cpu(
    switching, candidate, caplog, call, fault, monkeypatch
):
    started(switching, candidate)
    assert switching.n_together == 4
    together, expected = switching.together(lambda: True), OneByOne(reference())
    together.engine, expected.engine = switching, expected._engine
    calls = []
    call_worker = Worker.call
    monkeypatch.setattr(
        Worker,
        "call",
        lambda w, method, *given: calls.append(method) or call_worker(w, method, *given),
    )
    if fault:
        candidate.add(call, fault)
    for mine, exact in zip(batches(together), batches(expected), strict=True):
        np.testing.assert_allclose(mine, exact, atol=2e-5)
    assert calls.count("step_together") == {"": 4, "encode": 0, "step": 1}[call]
    assert len(warnings(caplog)) == bool(fault)


def test_in_the_middle_of_a_text_nothing_is_lost(switching, candidate, caplog):
    """A tree of slots, of which one that was written again, is computed anew on the CPU."""
    started(switching, candidate)
    engines = switching, reference()
    mel = np.zeros((80, 160), np.float32)
    decoders = [engine.decoder(engine.encode(mel), 12) for engine in engines]
    rng = np.random.default_rng(0)
    paths = [[0, 1, 2]]
    for decoder in decoders:
        run_in_order(decoder, [5, 6, 7], 0)
    for turn in range(8):
        if turn == 5:
            candidate.add("step", "kill")
        kept = paths[rng.integers(len(paths))]
        used = {slot for path in paths[-1:] for slot in path} | {*kept}
        free = sorted({*range(12)} - used)[:2]
        if not free or len(kept) > 9:
            break
        visible = np.zeros((len(free), 12), np.bool_)
        visible[:, kept] = True
        visible[range(len(free)), free] = True
        position = np.full(len(free), len(kept))
        asked = rng.integers(0, 300, len(free)), position, np.array(free), visible
        found = [decoder.step(*asked, np.arange(len(free))) for decoder in decoders]
        for mine, exact in zip(*found, strict=True):
            np.testing.assert_allclose(mine, exact, atol=2e-5)
        paths = [[*kept, slot] for slot in free]
    assert turn > 5
    assert "SIGKILL" in caplog.text


def test_an_engine_that_fails_again_and_again_is_left_alone_for_a_while(
    switching, candidate, caplog
):
    started(switching, candidate, losses=2, pause_s=1000)
    for _ in range(2):
        assert serves_again(switching)
        candidate.add("encode", "kill")
        assert_right(switching)
    assert_right(switching)
    assert not isinstance(switching.current, RemoteEngine)
    assert candidate.n_loads == 2
    assert left() == []


def test_after_the_pause_it_is_tried_again(switching, candidate, caplog):
    started(switching, candidate, losses=1, pause_s=0.01)
    candidate.refusals = 3
    candidate.add("encode", "kill")
    assert_right(switching)
    assert serves_again(switching)
    assert_right(switching)
    assert candidate.n_loads == 5
    assert warnings(caplog)[1:] == ["the faulty device cannot be loaded again: no device"], "once"


def test_losses_of_long_ago_do_not_count(switching, candidate):
    started(switching, candidate, losses=2, windows=5, pause_s=1000)
    for _ in range(3):
        assert serves_again(switching)
        candidate.add("encode", "kill")
        assert_right(switching)
        assert_right(switching)
    assert serves_again(switching)


def test_an_engine_that_nobody_uses_is_released_and_comes_back(switching, candidate, caplog):
    started(switching, candidate, idle_s=0.01)
    engines = switching._engines
    with engines.changed:
        assert engines.changed.wait_for(lambda: engines.fast is None, 100)
    while workers():
        threading.Event().wait(0.01)
    assert candidate.n_loads == 1, "only when somebody speaks"
    assert_right(switching)
    while candidate.n_loads == 1:
        threading.Event().wait(0.01)
    assert_right(switching)
    assert warnings(caplog) == []


def test_what_takes_too_much_memory_is_lost(switching, candidate, caplog):
    started(switching, candidate)
    worker = switching.current.worker
    worker.most_bytes = worker.used_bytes() + (1 << 26)
    candidate.add("encode", "grow")
    assert_right(switching)
    (warning,) = warnings(caplog)
    assert "MB, too much for this machine" in warning


def test_the_next_candidate_is_tried_if_one_is_wrong_or_cannot_be_loaded(
    switching, candidate, tmp_path, caplog
):
    absent = FaultyCandidate(tmp_path, refusals=1, name="another device")
    doubtful = FaultyCandidate(tmp_path, name="a third")
    judged = []

    def judge(engine: RemoteEngine) -> str:
        judged.append(engine)
        if len(judged) == 2:
            raise EngineError("it does not answer")
        return "reads nonsense" if len(judged) == 1 else ""

    started(switching, absent, doubtful, doubtful, candidate, judge=judge)
    assert warnings(caplog) == [
        "not using another device: no device",
        "not using a third: reads nonsense",
        "not using a third: it does not answer",
    ]
    assert switching.current is judged[2]
    assert len(workers()) == 1


def test_an_engine_serves_until_a_better_one_is_ready(
    switching, candidate, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(switchover, "_LAST_WINDOWS_S", 0.5)
    seen = []

    class Better(FaultyCandidate):
        def load(self):
            seen.append(switching.current)
            return super().load()

    better = Better(tmp_path, name="a better device", refusals=1)
    switching.start([[candidate], [better, better]], lambda engine: "")
    assert switching.settled.wait(100)
    assert seen[0] is seen[1]
    assert isinstance(seen[0], RemoteEngine)
    assert switching.current not in seen
    assert len(workers()) == 2, "windows on the first one may go on for a while"
    while len(workers()) == 2:
        threading.Event().wait(0.01)
    assert_right(switching)
    assert warnings(caplog) == ["not using a better device: no device"]
    candidate.add("encode", "kill")
    assert_right(switching)
    assert serves_again(switching)
    assert (candidate.n_loads, better.n_loads) == (1, 3), "the better one is loaded again"


def test_an_engine_is_loaded_again_while_a_better_one_is_being_loaded(
    switching, candidate, tmp_path
):
    is_tried, go_on = threading.Event(), threading.Event()

    class Slow(FaultyCandidate):
        def load(self):
            is_tried.set()
            assert go_on.wait(100)
            return super().load()

    switching.start([[candidate], [Slow(tmp_path, refusals=1)]], lambda engine: "")
    assert is_tried.wait(100)
    candidate.add("encode", "kill")
    assert_right(switching)
    assert serves_again(switching)
    assert candidate.n_loads == 2
    go_on.set()
    assert switching.settled.wait(100)
    assert isinstance(switching.current, RemoteEngine)


def test_a_recording_waits_for_the_first_fast_engine_no_longer_than_it_lasts(
    switching, candidate, tmp_path, monkeypatch
):
    go_on, better, waits = threading.Event(), threading.Event(), []

    class Slow(FaultyCandidate):
        def load(self):
            assert (go_on if self is first else better).wait(100)
            return super().load()

    first = Slow(tmp_path)
    switching.start([[first], [Slow(tmp_path)]], lambda engine: "")
    switching.wait(0.01)
    assert switching.for_recording() is switching._engines.cpu
    with monkeypatch.context() as patched:  # what has been loading for 100 s is not waited for
        patched.setattr(switching._engines.changed, "wait_for", lambda ready, s: waits.append(s))
        patched.setattr(switching, "_begun_s", switching._begun_s - 100)
        switching.wait(50)
    assert waits == [0.0]
    go_on.set()
    switching.wait(100)
    assert switching.for_recording() is switching, "it does not wait for the better one"
    assert not switching.settled.is_set()
    better.set()
    assert switching.settled.wait(100)
    switching.wait(100)  # which has an end if nothing is loaded any more


def test_a_recording_has_an_engine_that_was_released_loaded_for_the_next_one(switching, candidate):
    started(switching, candidate, idle_s=0.01)
    engines = switching._engines
    with engines.changed:
        assert engines.changed.wait_for(lambda: engines.fast is None, 100)
    assert candidate.n_loads == 1
    assert switching.for_recording() is engines.cpu
    while candidate.n_loads == 1:  # it is released again at once
        threading.Event().wait(0.01)


def test_one_that_is_not_faster_ends_its_stage(switching, candidate, tmp_path, caplog):
    caplog.set_level(logging.INFO)

    def judge(engine: RemoteEngine) -> str:
        raise NotFasterError("a step takes 20 ms, on the CPU 10")

    other = FaultyCandidate(tmp_path)
    started(switching, candidate, other, judge=judge)
    assert other.n_loads == 0
    assert warnings(caplog) == []
    assert "not using the faulty device: a step takes 20 ms, on the CPU 10" in caplog.messages
    assert left() == []


@pytest.mark.parametrize("moment", ["load", "judge", "again"])
def test_no_engine_is_left_if_the_program_ends_meanwhile(candidate, tmp_path, moment, caplog):
    """While one is loaded, judged or loaded again."""
    switching = SwitchingEngine(reference())
    is_there, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        is_there.set()
        assert go_on.wait(100)

    class Waiting(FaultyCandidate):
        def load(self):
            engine = super().load()
            if moment == "load" or (moment == "again" and self.n_loads == 2):
                wait()
            return engine

    def judge(engine: RemoteEngine) -> str:
        if moment == "judge":
            wait()
        return ""

    waiting = Waiting(tmp_path)
    thread = switching.start([[waiting]], judge)
    if moment == "again":
        assert switching.settled.wait(100)
        waiting.add("encode", "kill")
        assert_right(switching)
    assert is_there.wait(100)
    switching.close()
    go_on.set()
    thread.join(100)
    assert not thread.is_alive()
    assert left() == []
    assert switching.name == ""
    assert_right(switching)


@pytest.mark.parametrize("where", ["load", "again"])
def test_an_unexpected_error_costs_only_the_fast_engine(switching, tmp_path, caplog, where):
    class Broken(FaultyCandidate):
        def load(self):
            if where == "load" or self.n_loads:
                self.n_loads += 1
                raise OSError("no processes left")
            return super().load()

    broken = Broken(tmp_path)
    started(switching, broken, pause_s=1000)
    if where == "again":
        broken.add("encode", "kill")
    assert_right(switching)
    if where == "again":
        while broken.n_loads < 2:
            threading.Event().wait(0.01)
    assert_right(switching)
    switching.close()
    switching.thread.join(100)
    assert "no processes left" in caplog.text


def test_while_the_cpu_serves_all_its_threads_may_be_used(candidate):
    class Urgent(ReferenceEngine):
        urgent = None

    cpu, more = reference(Urgent), reference(Urgent)
    cpu.urgent, used = more, []
    more.encode = lambda *given, **options: used.append(1) or cpu.encode(*given, **options)
    switching = SwitchingEngine(cpu)
    assert switching.for_recording() is cpu
    assert_right(switching.urgent, adopts=True)
    assert len(used) == 3
    started(switching, candidate)
    assert switching.for_recording() is switching
    assert_right(switching.urgent)
    assert len(used) == 3
    switching.close()


@pytest.mark.parametrize("fault", ["raise", "kill"])
def test_the_cpu_serves_if_there_is_no_other_way(switching, candidate, caplog, fault):
    caplog.set_level(logging.INFO)
    candidate.add("load", fault)
    started(switching, candidate)
    assert caplog.messages[-1] == "captions stay on the CPU"
    assert_right(switching)
    assert left() == []


def test_the_cpus_own_errors_are_raised(candidate):
    class Failing(ReferenceEngine):
        def encode(self, *given, **options):
            raise EngineError("no memory")

    switching = SwitchingEngine(reference(Failing))
    with pytest.raises(EngineError, match="no memory"):
        switching.encode(np.zeros((80, 40), np.float32))


def test_the_worker_ends_with_the_engine(candidate):
    switching = started(SwitchingEngine(reference()), candidate)
    thread = switching.thread
    assert_right(switching)
    assert len(workers()) == 1
    del switching
    gc.collect()
    thread.join(100)
    assert not thread.is_alive()
    assert left() == []


def test_several_threads_share_an_engine_that_dies(switching, candidate):
    started(switching, candidate)
    candidate.add("step", "kill")
    wrong = []

    def caption() -> None:
        try:
            assert_right(switching)
        except BaseException as error:
            wrong.append(error)
            raise

    threads = [threading.Thread(target=caption) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert wrong == []


class InProcess:
    """A worker without a process."""

    def __init__(self, served: ServedEngine) -> None:
        self.served = served

    def call(self, method, *arguments):
        return getattr(self.served, method)(*arguments)


def test_threads_may_encode_at_once_while_others_drop():
    dropped, wrong = DroppedNumbers(), []

    def take() -> None:
        try:
            for number in range(20_000):
                dropped._dropped.extend((number, number, number))
                dropped.taken()
        except IndexError as error:
            wrong.append(error)

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert wrong == []


def test_a_decoder_that_begins_on_the_cpu_knows_it(switching, candidate):
    started(switching, candidate)
    features = switching.encode(np.zeros((80, 80), np.float32))
    candidate.add("decoder", "kill")
    decoder = switching.decoder(features, 8)
    assert decoder._engine is switching._engines.cpu
    assert_right(switching)


def test_what_the_program_drops_the_worker_drops():
    served = ServedEngine(reference())
    engine = RemoteEngine(InProcess(served))
    for _ in range(3):
        list(answers(engine))
    gc.collect()
    engine.encode(np.zeros((80, 40), np.float32))
    assert len(served._features) <= 2
    assert len(served._decoders) == 0
