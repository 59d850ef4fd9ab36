"""Captions move to a fast engine and back without a difference, whatever that engine does."""

import gc
import io
import logging
import threading
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from streamd.engines.reference import ReferenceEngine
from streamd.engines.supervised.remote import RemoteEngine
from streamd.engines.supervised.switchover import NotFasterError, Patience, Switchover
from streamd.engines.supervised.worker import DroppedNumbers, Worker, _CallPickler, answered
from streamd.errors import EngineError
from streamd.whisper.engine import Reuse, on_one_of, run_in_order
from tests.support.decoders import run_pass
from tests.support.supervised import FaultyCandidate, FaultyEngine, left, reference, workers

pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def candidate(tmp_path) -> FaultyCandidate:
    return FaultyCandidate(tmp_path)


@pytest.fixture
def switching() -> Iterator[Switchover]:
    engine = Switchover(reference())
    yield engine
    engine.close()


def started(switching, *candidates, judge=lambda engine: "", **patience) -> Switchover:
    """When it is settled which engine serves."""
    switching.thread = switching.start(candidates, judge, Patience(**patience))
    assert switching.settled.wait(100)
    return switching


def warnings(caplog) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def window(engine, n: int, known: list, *, adopts: bool) -> list[np.ndarray]:
    """A window with a prompt, a tree and one branch that goes on.

    `known` are the engine, the features and the decoder of the window before. Who `adopts` takes
    the prompt over from there, as it was computed.
    """
    mel = np.random.default_rng(0).normal(size=(80, 240)).astype(np.float32)[:, : 2 * n]
    before = known[1:] if known and known[0] is engine else None
    features = engine.encode(mel, Reuse(before[0], 60) if before else None)
    decoder, found = engine.decoder(features, 40), []
    if not (adopts and before and decoder.adopt(before[1], 5)):
        found += run_in_order(decoder, [3, 1, 4, 1, 5], 0)
    tree = np.zeros((2, 40), np.bool_)
    tree[:, :5] = True
    tree[0, 30] = tree[1, 7] = True
    order = np.array([1, 0])
    found += run_pass(decoder, np.array([9, 2]), np.array([5, 5]), np.array([30, 7]), tree, order)
    one = np.zeros((1, 40), np.bool_)
    one[:, [0, 1, 2, 3, 4, 7, 12]] = True
    asked = np.array([6]), np.array([6]), np.array([12]), one, np.array([0])
    found += run_pass(decoder, *asked, np.array([9, 1, 7]))
    known[:] = engine, features, decoder
    return found


def answers(engine, *, adopts: bool = False) -> Iterator[np.ndarray]:
    """Those of three windows that grow."""
    known = []
    for n in (80, 100, 120):
        yield from on_one_of(engine, partial(window, n=n, known=known, adopts=adopts))


def assert_right(engine, *, adopts: bool = False) -> None:
    expected = answers(reference(), adopts=adopts)
    for mine, exact in zip(answers(engine, adopts=adopts), expected, strict=True):
        np.testing.assert_allclose(mine, exact, atol=2e-5)


def serves_again(switching) -> bool:
    """Wait until the fast engine is back."""
    with switching.changed:
        return switching.changed.wait_for(lambda: switching.fast is not None, 100)


def test_a_candidate_that_is_right_takes_over(switching, candidate, caplog):
    caplog.set_level(logging.INFO)
    assert_right(switching, adopts=True)  # on the CPU
    started(switching, candidate)
    assert isinstance(switching.current, RemoteEngine)
    assert caplog.messages[-1].startswith("captions moved to the faulty device after ")
    assert_right(switching, adopts=True)
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    ("call", "fault", "why"),
    [
        ("encode", "raise", "the device is gone"),
        ("encode", "kill", "ended by SIGKILL"),
        ("encode", "hang", "did not answer within 2 s"),
        ("decoder", "raise", "the device is gone"),
        ("decoder", "kill", "ended by SIGKILL"),
        ("run", "raise", "the device is gone"),
        ("run", "kill", "ended by SIGKILL"),
        ("run", "hang", "did not answer within 2 s"),
        ("run", "nan", "computed infinity or NaN"),
    ],
)
def test_the_cpu_computes_the_window_of_an_engine_that_fails(
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
    with switching.changed:
        assert switching.changed.wait_for(lambda: switching.fast is None, 100)
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


def test_a_recording_waits_for_the_fast_engine_no_longer_than_it_lasts(
    switching, tmp_path, monkeypatch
):
    go_on, waits = threading.Event(), []

    class Slow(FaultyCandidate):
        def load(self):
            assert go_on.wait(100)
            return super().load()

    switching.start([Slow(tmp_path)], lambda engine: "")
    switching.wait(0.01)
    assert switching.current is switching.cpu
    with monkeypatch.context() as patched:  # what has been loading for 100 s is not waited for
        patched.setattr(switching.changed, "wait_for", lambda ready, s: waits.append(s))
        patched.setattr(switching, "_begun_s", switching._begun_s - 100)
        switching.wait(50)
    assert waits == [0.0]
    go_on.set()
    switching.wait(100)
    assert isinstance(switching.current, RemoteEngine)
    assert switching.settled.wait(100)
    switching.wait(100)  # which has an end if nothing is loaded any more


def test_after_one_that_is_not_faster_no_other_is_tried(switching, candidate, tmp_path, caplog):
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
    switching = Switchover(reference())
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
    thread = switching.start([waiting], judge)
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

    with pytest.raises(EngineError, match="no memory"):
        assert_right(Switchover(reference(Failing)))


def test_the_worker_ends_when_it_is_closed(switching, candidate, caplog):
    started(switching, candidate)
    assert_right(switching)
    assert len(workers()) == 1
    switching.close()
    switching.thread.join(100)
    assert left() == []
    assert warnings(caplog) == []


def test_several_threads_share_an_engine_that_dies(switching, candidate):
    started(switching, candidate)
    candidate.add("run", "kill")
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


def test_what_the_program_drops_the_worker_drops(candidate, monkeypatch):
    engine, kept = candidate.load(), {}
    kept[0] = reference(FaultyEngine)
    kept[0].folder = candidate.folder

    def send(worker, request):
        data = io.BytesIO()
        dropped = worker._dropped.taken()
        _CallPickler(data).dump(request._replace(dropped=dropped))
        return answered(data.getvalue(), kept)

    engine.close()
    monkeypatch.setattr(Worker, "_send", send)  # what the process would do, in this one
    for _ in range(3):
        list(answers(engine))
    gc.collect()
    engine.encode(np.zeros((80, 40), np.float32))
    assert len(kept) <= 3
