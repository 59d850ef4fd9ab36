"""What Whisper needs of the runtime that computes its encoder and decoder.

The decoder's key/value cache is a pool of *slots*: a hypothesis is a path of slots, and `visible`
says which slots each query of a pass attends to. Greedy search is one query at a time, a draft is
verified by a chain of queries, beam search is one query per beam on a shared tree, and a prompt is
one pass. No cache is copied or reordered, and all engines (`streamd.engines`) share the search.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from streamd.errors import EngineError
from streamd.models import ModelDimensions
from streamd.models.silence import Extent
from streamd.types import Mel

Logits = NDArray[np.float32]
"""(m, n_vocab), or of some tokens of the vocabulary."""
Alignment = NDArray[np.float32]
"""(k, n_heads, n_ctx): raw scaled query-key scores of the alignment heads, before the softmax."""
Answer = tuple[Logits, Alignment]
"""What a pass of the decoder gives."""


class Pass(NamedTuple):
    """A pass of k tokens through the decoder of a window.

    Attributes
    ----------
    tokens : (k,) token ids
    positions : (k,) places in the text context, 0-based
    slots : (k,) distinct free slots, into which the pass writes keys and values
    visible : (k, n_slots), True where a query attends: its past, its own slot, and the slots of
        earlier queries of the same pass that it continues
    want : (m,) which of the k rows to project to logits (the vocabulary is most of the work)
    among : (n,) the tokens whose logits are wanted; all of the vocabulary if None
    """

    decoder: "Decoder"
    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    visible: NDArray[np.bool_]
    want: NDArray[np.int64]
    among: NDArray[np.int64] | None = None


class Decoder(Protocol):
    """A model's decoder with the features of one window; for one search, from one thread."""

    n_vocab: int
    n_text_ctx: int
    n_slots: int
    """Slots in the pool, 0..n_slots-1; all of them are free at first."""

    def run(self, asked: Pass) -> Answer:
        """Run a pass of this decoder.

        Returns logits (m, n_vocab) or (m, n), float32, in the order of `want` and `among`, which
        may differ by rounding where only some are wanted; and alignment (k, n_heads, n_ctx)
        float32. The caller may keep both.
        """
        ...

    def adopt(self, before: "Decoder", n: int) -> bool:
        """Take the first `n` slots of another window's decoder; False if this one cannot."""
        ...


ResultT = TypeVar("ResultT")
Search = Generator[Pass, Answer, ResultT]
"""A search asks for passes, gets their answers, and returns its result.

So the passes of several searches, each of one window, can be run at once.
"""


def alone(search: Search[ResultT]) -> ResultT:
    """Run one search, pass after pass; return its result."""
    try:
        asked = next(search)
        while True:
            asked = search.send(asked.decoder.run(asked))
    except StopIteration as done:
        result: ResultT = done.value
        return result


FeaturesT = TypeVar("FeaturesT")
FeaturesT_co = TypeVar("FeaturesT_co", covariant=True)


class Reuse(NamedTuple, Generic[FeaturesT]):
    """Features of a window that began with the same frames, whose first `n` positions are known."""

    features: FeaturesT
    n: int = 0


class Engine(Protocol, Generic[FeaturesT]):
    """A loaded model on some runtime."""

    dims: ModelDimensions

    @property
    def n_cheap(self) -> int:
        """Tokens that a pass may have and hardly take longer than with one."""
        ...

    def encode(
        self, mel: Mel, reuse: Reuse[FeaturesT] | None = None, *, audio_ctx: int = 0
    ) -> FeaturesT:
        """Encode log-mel (n_mels, n_columns) into opaque features, cross-attention K/V included.

        The model's full context is encoded, or what stands for it (streamd/models/silence.py): the
        last column of `mel` is silence and repeats to its end. A positive `audio_ctx` cuts the
        context to that many positions, but not below the length of `mel`. An engine may take the
        first positions from what it may `reuse` instead of computing them, and write the others
        into its memory: a decoder of those features must not be used any more. Raises `EngineError`
        if the runtime fails, `ValueError` if `mel` does not fit the model.
        """
        ...

    def decoder(self, features: FeaturesT, n_slots: int) -> Decoder:
        """Give a decoder for these features with an empty pool of `n_slots` cache slots."""
        ...


@runtime_checkable
class ProjectingEngine(Protocol[FeaturesT]):
    """An `Engine` that can go on from the output of another encoder of the same model."""

    def project(
        self,
        encoded: NDArray[np.float16],
        extent: Extent,
        *,
        reuse: Reuse[FeaturesT] | None = None,
    ) -> FeaturesT:
        """Make features of the encoder's output (extent.n - reuse.n, n_state), in float16.

        What is missing of the `extent` are the first positions of what is to be reused; if it
        leaves something to silence, the engine adds its own states of it. The next window reuses
        nothing of the encoder from these features, only of what the decoder attends to.
        """
        ...


@runtime_checkable
class UrgentEngine(Protocol[FeaturesT]):
    """An `Engine` that can compute a window sooner, with the threads of others."""

    @property
    def urgent(self) -> Engine[FeaturesT] | None:
        """The same model on more threads, if there are more; features fit both."""
        ...


def urgent(engine: object) -> Engine[Any] | None:
    """Return the same model on more threads, if there is one."""
    return engine.urgent if isinstance(engine, UrgentEngine) else None


@runtime_checkable
class EngineSwitch(Protocol):
    """Engines of one model, of which one serves at a time; what one encodes is only its own."""

    dims: ModelDimensions

    def use(self) -> Engine[Any]:
        """Return the engine for a new window."""
        ...

    def instead_of(self, engine: Engine[Any], error: EngineError) -> Engine[Any]:
        """Return what takes over from an engine that failed; raise the error if nothing does."""
        ...


AnyEngine = Engine[Any] | EngineSwitch


def on_one_of(engine: AnyEngine, compute: Callable[[Engine[Any]], ResultT]) -> ResultT:
    """Compute something on the engine that serves; if that fails, anew on what takes over."""
    if not isinstance(engine, EngineSwitch):
        return compute(engine)
    used = engine.use()
    try:
        return compute(used)
    except EngineError as error:
        return compute(engine.instead_of(used, error))


class Together(Protocol[FeaturesT_co]):
    """Runs passes of the decoders of several windows at once, from one thread."""

    def run(self, passes: Sequence[Pass]) -> list[Answer]:
        """Run passes, each with another decoder of features that were kept."""
        ...

    def encode_alone(self, mel: Mel) -> FeaturesT_co:
        """Encode a window, as `Engine.encode`, for a decoder whose passes run with others.

        No later window reuses anything of it. The features serve one decoder at a time, the newest
        one, and take memory until the last reference to them is gone. There is memory for
        `BatchEngine.n_together` windows.
        """
        ...

    def begin(self, mel: Callable[[], Mel]) -> Callable[[], FeaturesT_co]:
        """Begin to encode a window beside the caller, if there is a thread for it.

        One window after the other is encoded like that. What is returned waits for the features,
        or encodes the window itself; while it would wait, it may encode others that were begun. It
        is called once, or never, and raises what `encode_alone` raises for this window. By default,
        that begins it.
        """
        features = [self.encode_alone(mel())]
        return features.pop  # so that nothing else keeps them


@runtime_checkable
class BatchEngine(Protocol[FeaturesT_co]):
    """An `Engine` whose decoder is faster for several windows at once than one after the other."""

    n_together: int

    def together(self, is_alone: Callable[[], bool]) -> Together[FeaturesT_co]:
        """Give what runs passes of up to `n_together` of its decoders at once.

        While nobody else needs the engine, which `is_alone` says, it may use another thread.
        """
        ...


def run_in_order(decoder: Decoder, tokens: Sequence[int], first: int) -> Answer:
    """Run a part of a text that begins with token `first`; each token sees all before it."""
    order = np.arange(first, first + len(tokens))
    visible = np.arange(decoder.n_slots) <= order[:, None]
    rows = np.arange(len(tokens))
    return decoder.run(Pass(decoder, np.asarray(tokens, np.int64), order, order, visible, rows))
