"""The search says what textbooks say: greedy, draft verification, beams and samples."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.engines.onnx import OnnxEngine, build
from streamd.options import DecodingOptions
from streamd.whisper.beam import beam_search, best
from streamd.whisper.decode import Context, Decoded, slots_needed
from streamd.whisper.engine import Answer, Decoder, Pass, alone
from streamd.whisper.greedy import Sampler, draw, sample
from streamd.whisper.logit_rules import Rules
from streamd.whisper.mel import log_mel
from streamd.whisper.paths import Cache, Path, log_softmax
from streamd.whisper.tokenizer import Tokenizer
from tests.golden import load
from tests.support.checkpoints import network
from tests.support.decoders import (
    EOT,
    GREEDY,
    N_VOCAB,
    NOTIMESTAMPS,
    SOT,
    TOKENIZER,
    CheckedEngine,
    ContextDecoder,
    decode,
    hashed,
    outcome,
    run,
    run_pass,
    scripted,
)


class OneOfSeveral(ContextDecoder):
    """Its logits are in one array with those of another window; the newest of them may be kept."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.arrays: list[weakref.ref[np.ndarray]] = []

    def run(self, asked: Pass) -> Answer:
        assert sum(array() is not None for array in self.arrays) <= 1
        logits, alignment = super().run(asked)
        both = np.concatenate([logits, logits])
        self.arrays.append(weakref.ref(both))
        return both[: len(logits)], alignment


def test_a_search_keeps_no_logits_of_other_windows():
    context = Context(max_tokens=8)
    decoder = OneOfSeveral(
        hashed(1, eot_bias=-100), slots_needed(context, options=GREEDY, n_text_ctx=448)
    )
    decode(decoder, TOKENIZER, options=GREEDY, context=context)
    assert len(decoder.arrays) > 4


tokens = st.lists(st.integers(0, 255), max_size=12)
seeds = st.integers(0, 10**6)


@st.composite
def drafts(draw, truth: Sequence[int]) -> list[int]:
    """The truth with a wrong tail, a hole, a repeat; too long; or anything at all."""
    start = list(truth[: draw(st.integers(0, len(truth)))])
    rest = list(truth[draw(st.integers(0, len(truth))) :])
    garbage = draw(st.lists(st.integers(-3, N_VOCAB + 3), max_size=30))
    return draw(st.sampled_from([start, start + rest, start + garbage, garbage, [*truth, *truth]]))


@given(st.data(), seeds, tokens, tokens, st.sampled_from([0.0, 5.0, 9.0]))
def test_a_verified_draft_changes_nothing(data, seed, prompt, prefix, eot_bias):
    predict = hashed(seed, eot_bias=eot_bias)
    context = Context(20, prompt=tuple(prompt), prefix=tuple(prefix))
    plain = run(predict, context)
    draft = data.draw(drafts(plain.tokens))
    drafted = run(predict, Context(20, tuple(prompt), tuple(prefix), tuple(draft)))
    assert outcome(drafted) == outcome(plain)


@given(
    st.data(),
    seeds,
    tokens,
    st.lists(st.integers(0, 255), min_size=1, max_size=40),
    st.sampled_from([{}, {"beam_size": 3}, {"temperature": 0.7}]),
)
def test_tokens_that_an_earlier_window_knows_change_nothing(data, seed, prompt, text, how):
    """The text that it was given may be the beginning of this one's, or part of it."""
    predict, options = hashed(seed, eot_bias=5.0), replace(GREEDY, best_of=3)
    if "temperature" in how:
        options = replace(options, temperatures=(0.7,))
    options = replace(options, beam_size=how.get("beam_size", 1))
    n_earlier = data.draw(st.integers(0, len(text)))
    told = Context(10, prompt=tuple(prompt), n_frames=190)  # all 40 that it attends to are old
    earlier = run(predict, replace(told, prefix=tuple(text[:n_earlier])))
    context = replace(told, prefix=tuple(text))

    def outcome_with(context: Context) -> tuple:
        how_now = {"temperature": 0.7, "rng": np.random.default_rng(1)}
        return outcome(run(predict, context, options, **(how_now if "temperature" in how else {})))

    assert outcome_with(replace(context, cached=earlier.cached)) == outcome_with(context)


def test_known_tokens_are_not_run_again_unless_they_attend_to_new_sound():
    predict = scripted([*b"abc", EOT], [5 + 10 * i for i in range(30)], n_ctx=300, prefix=b"x" * 20)
    context = Context(10, prefix=tuple(b"x" * 20), n_frames=300)
    earlier = run(predict, context)
    # sot and notimestamps, and those whose successor is before frame 150
    assert len(earlier.cached.tokens) == 2 + 14
    decoder = ContextDecoder(predict, 60)
    found = decode(
        decoder,
        TOKENIZER,
        options=GREEDY,
        context=replace(context, cached=earlier.cached, draft=tuple(b"abc")),
    )
    assert outcome(found)[:-1] == outcome(earlier)[:-1]
    assert decoder.passes == [6 + 3 + 1], "and start-of-transcript once more"
    shorter = replace(context, cached=earlier.cached, n_frames=200)
    assert (
        outcome(run(predict, shorter))[:-1]
        == outcome(run(predict, replace(shorter, cached=None)))[:-1]
    )


def test_a_right_draft_costs_one_pass():
    context = Context(20)
    truth = run(hashed(5, eot_bias=2.0), context).tokens
    assert len(truth) >= 5
    decoder = ContextDecoder(hashed(5, eot_bias=2.0), 60)
    decode(decoder, TOKENIZER, options=GREEDY, context=Context(20, draft=truth))
    assert decoder.passes == [2 + len(truth)]


@pytest.mark.parametrize(
    ("said", "draft", "passes"),
    [
        (b"abcdefgh", b"", [2, 2, 2, 2, 2, 2, 2, 2, 2]),  # each with a full stop after it
        (b"abcdefgh", b"abXdefgh", [10, 2, 4, 2]),  # the draft again after a wrong token
        (b"abcdefgh", b"abdefgh", [9, 2, 4, 2]),  # after one that was left out
        (b"ab.", b"a", [3, 2]),  # the full stop at the end costs no pass
        (b"ab.", b"abc", [5, 1]),  # nor is another expected after it
        (b"ababy", b"abxaby", [8, 3]),  # the guess follows the nearest of equal tokens
    ],
)
def test_what_follows_a_wrong_draft_is_guessed(said, draft, passes):
    predict = scripted([*said, EOT], n_ctx=200)
    decoder = ContextDecoder(predict, 60)
    found = decode(decoder, TOKENIZER, options=GREEDY, context=Context(20, draft=tuple(draft)))
    assert bytes(found.tokens) == said
    assert outcome(found) == outcome(run(predict, Context(20)))
    assert decoder.passes == passes


@pytest.mark.parametrize(
    ("n_cheap", "passes"),
    [
        (1, [10, 1, 1, 1, 1, 1, 1]),
        (2, [10, 2, 2, 2, 2]),
        (4, [10, 2, 4, 2]),
        (16, [10, 2, 5]),
    ],
)
def test_as_much_is_guessed_as_costs_the_engine_little(n_cheap, passes):
    predict = scripted([*b"abcdefgh", EOT], n_ctx=200)
    context = Context(20, draft=tuple(b"abXdefgh"), n_cheap=n_cheap)
    decoder = ContextDecoder(predict, slots_needed(context, options=GREEDY, n_text_ctx=448))
    found = decode(decoder, TOKENIZER, options=GREEDY, context=context)
    assert bytes(found.tokens) == b"abcdefgh"
    assert decoder.passes == passes


def test_the_timestamps_between_segments_are_guessed():
    begin = TOKENIZER.timestamp_begin
    said = (begin, *b"ab", begin + 9, begin + 9, *b"c", begin + 20)

    def predict(context: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        logits = np.full(N_VOCAB, -40.0, np.float32)
        logits[[*said, EOT, EOT][len(context) - len(TOKENIZER.sot_sequence)]] = 0.0
        return logits, np.zeros((2, 40))

    decoder = ContextDecoder(predict, 60)
    found = decode(
        decoder,
        TOKENIZER,
        options=replace(GREEDY, timestamps=True),
        context=Context(20, guesses=False),
    )
    assert found.tokens == said
    assert decoder.passes == [2, 1, 1, 2, 1, 2], "the first, and those after ends"


def test_a_timestamp_s_probability_is_the_one_it_was_chosen_by():
    options = replace(GREEDY, timestamps=True)
    predict = hashed(5)
    found = decode(ContextDecoder(predict, 600), TOKENIZER, options=options, context=Context(30))
    row, _ = predict(TOKENIZER.sot_sequence)
    chosen = np.exp(log_softmax(Rules(TOKENIZER, options)(row, ())))
    assert found.tokens[0] >= TOKENIZER.timestamp_begin
    assert found.token_probs[0] == pytest.approx(float(chosen[found.tokens[0]]))
    assert 0 < found.token_probs[0] < 1


@given(seeds, st.sampled_from([0.0, 6.0]), st.booleans(), st.sampled_from([(), (65, 66, 67)]))
def test_a_token_s_probability_is_its_share_of_all_text(seed, eot_bias, timestamps, suppressed):
    """Of what the rules refuse, too, however probable that is."""
    options = replace(
        GREEDY,
        timestamps=timestamps,
        suppress_tokens=suppressed,
        suppress_blank=True,
        stop_margin=1.0,
    )

    def predict(tokens):
        row, frame = hashed(seed, eot_bias=eot_bias)(tokens)
        row[list(suppressed)] += np.float32(20)
        return row, frame

    found = run(predict, Context(12), options)
    given_tokens = (*TOKENIZER.sot_sequence, *(() if timestamps else (NOTIMESTAMPS,)))
    rules, logprobs = Rules(TOKENIZER, options), []
    for n, (token, prob) in enumerate(zip(found.tokens, found.token_probs, strict=True)):
        row, _ = predict((*given_tokens, *found.tokens[:n]))
        logprobs.append(log_softmax(rules(row, found.tokens[:n]))[token])
        expected = logprobs[-1] if token >= EOT else log_softmax(row[:EOT])[token]
        assert prob == pytest.approx(np.exp(expected), rel=1e-4)
    if not found.ended:
        mean = np.sum(logprobs) / (len(logprobs) + 1)
        assert found.avg_logprob == pytest.approx(mean, abs=1e-4)


def test_timestamps_are_verified_too():
    options = DecodingOptions(timestamps=True, suppress_tokens=())
    plain = run(hashed(1), Context(20), options)
    assert max(plain.tokens) > EOT
    drafted = run(hashed(1), Context(20, draft=plain.tokens), options)
    assert outcome(drafted) == outcome(plain)


def textbook_beam_search(
    logits_behind: Callable[[tuple[int, ...]], np.ndarray],
    rules: Rules,
    *,
    beam_size: int,
    max_tokens: int,
) -> tuple[int, ...]:
    """Sequences and their scores; the whole context is run for every one of them, every time."""
    alive: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    done: list[tuple[tuple[int, ...], float]] = []
    for _ in range(max_tokens):
        options = []
        for sequence, score in alive:
            logprobs = log_softmax(rules(logits_behind(sequence), sequence))
            # Of one sequence no more can be chosen, one of which may be the end.
            best = np.argsort(-logprobs, kind="stable")[: beam_size + 1].tolist()
            options += [((*sequence, t), score + float(logprobs[t])) for t in best]
        options = [option for option in options if option[1] > -np.inf]
        options.sort(key=lambda option: -option[1])
        alive = []
        for sequence, score in options:
            if sequence[-1] != rules.eot:
                alive.append((sequence, score))
            elif len(done) < beam_size:
                done.append((sequence[:-1], score))
            if len(alive) == beam_size:
                break
        if len(done) >= beam_size:
            break
    done += alive[: beam_size - len(done)]

    return max(done, key=lambda option: option[1] / max(1, len(option[0])))[0]


@given(seeds, st.integers(2, 7), tokens, st.sampled_from([0, 4, 8]))
def test_beam_search_is_the_textbook_s(seed, beam_size, prefix, eot_bias):
    predict = hashed(seed, eot_bias=eot_bias)
    options = DecodingOptions(beam_size=beam_size, suppress_tokens=())
    rules = Rules(TOKENIZER, options, something_said=bool(prefix))
    expected = textbook_beam_search(
        lambda sequence: predict((SOT, NOTIMESTAMPS, *prefix, *sequence))[0],
        rules,
        beam_size=beam_size,
        max_tokens=8,
    )
    assert run(predict, Context(8, prefix=tuple(prefix)), options).tokens == expected


def test_a_beam_that_ends_does_not_cost_another_its_place():
    def predict(context: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        said = context[2:]
        logits = np.full(N_VOCAB, -30.0)
        if not said:  # the end is likeliest, then a dead end, then what turns out to be right
            logits[[EOT, 1, 2]] = np.log([0.4, 0.3, 0.29])
        elif said[0] == 1:
            logits[:256] = 0.0
        else:
            logits[EOT if len(said) == 5 else 2] = 30.0
        return logits, np.zeros((1, 4))

    options = DecodingOptions(beam_size=2, suppress_tokens=(), suppress_blank=False)
    assert run(predict, Context(9), options).tokens == (2, 2, 2, 2, 2)


@pytest.mark.parametrize("whole", [False, True])
def test_improbable_ends_do_not_end_a_live_beam_search(whole):
    def predict(context: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        n_said = len(context) - 2
        logits = np.full(N_VOCAB, -30.0)
        # Any other token is so improbable that the end is among the best candidates.
        logits[[1, EOT]] = [9.0, 4.0] if n_said < 5 else [-30.0, 9.0]
        return logits, np.zeros((1, 4))

    options = DecodingOptions(
        beam_size=2, suppress_tokens=(), suppress_blank=False, whole_beams=whole
    )
    assert (run(predict, Context(9), options).tokens == (1, 1, 1, 1, 1)) == whole


def test_what_follows_the_utterance_before_has_a_word():
    stop = TOKENIZER.encode(".")[0]

    def predict(context: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        logits = np.full(N_VOCAB, -30.0)
        logits[[stop, EOT, 5]] = [9.0, 8.0, 7.0] if context[-1] != 5 else [-30.0, 9.0, -30.0]
        return logits, np.zeros((1, 4))

    def said(context: Context) -> tuple[int, ...]:
        return run(predict, context, DecodingOptions(suppress_tokens=())).tokens

    assert said(Context(3, before=(7, 8))) == (stop, 5)
    assert said(Context(1, prefix=(7, 8))) == (stop,)
    assert said(Context(1, before=(7,), prefix=(8,))) == (stop,)


@given(seeds, tokens, st.sampled_from([0.0, 5.0, 9.0]))
def test_a_beam_of_one_is_greedy(seed, prefix, eot_bias):
    predict = hashed(seed, eot_bias=eot_bias)
    greedy = run(predict, Context(12, prefix=tuple(prefix)))
    given_tokens = (SOT, NOTIMESTAMPS, *prefix)
    cache = Cache(ContextDecoder(predict, 40))
    prefill = alone(cache.prefill(given_tokens, [len(given_tokens) - 1]))
    rules = Rules(TOKENIZER, GREEDY)
    beams = beam_search(cache, prefill, rules=rules, options=DecodingOptions(), max_tokens=12)
    (path,) = alone(beams)
    assert path.tokens == greedy.tokens
    assert path.ended == greedy.ended
    expected = greedy.avg_logprob * (len(greedy.tokens) + 1)
    assert path.sum_logprob == pytest.approx(expected, abs=1e-5)  # a beam adds up in float32


@given(seeds, st.integers(1, 6), st.floats(0.1, 1.5))
def test_samples_depend_on_their_generator_alone(seed, best_of, temperature):
    options = DecodingOptions(best_of=best_of, suppress_tokens=())
    found = [
        run(
            hashed(3),
            Context(10),
            options,
            temperature=temperature,
            rng=np.random.default_rng(seed),
        )
        for _ in range(2)
    ]
    assert outcome(found[0]) == outcome(found[1])
    assert found[0].temperature == temperature


def test_samples_are_drawn_from_the_softmax():
    predict = hashed(8, eot_bias=-99.0, sharp=3.0)
    temperature, n = 0.7, 2000
    options = DecodingOptions(best_of=1, suppress_tokens=())
    rng = np.random.default_rng(0)
    context = Context(1)
    drawn = [
        run(predict, context, options, temperature=temperature, rng=rng).tokens[0] for _ in range(n)
    ]
    rules = Rules(TOKENIZER, options)
    expected = np.exp(log_softmax(rules(predict((SOT, NOTIMESTAMPS))[0], ()) / temperature))
    likely = np.argsort(-expected)[:8]
    counts = np.bincount(drawn, minlength=N_VOCAB)[likely]
    error = np.sqrt(n * expected[likely] * (1 - expected[likely]))
    assert (np.abs(counts - n * expected[likely]) < 4.5 * error).all()


def test_sampling_wants_a_generator():
    with pytest.raises(ValueError, match="generator"):
        run(hashed(0), Context(3), temperature=0.5)


@given(
    st.lists(st.sampled_from([-np.inf, -30.0, 0.0, 1.0, 2.5]), min_size=1, max_size=9),
    st.floats(0.0, 1.0, exclude_max=True),
)
def test_luck_falls_on_the_token_whose_share_it_is_in(logits, luck):
    row = np.array([*logits, 0.5, -np.inf], np.float32)
    probs = np.exp(row.astype(np.float64))
    below = np.concatenate([[0.0], np.cumsum(probs / probs.sum())])
    token = draw(row, luck)
    assert row[token] > -np.inf
    assert below[token] - 1e-9 <= luck <= below[token + 1] + 1e-9


def test_a_sample_s_luck_does_not_depend_on_how_long_the_others_are():
    """Each transcript has a number of its own in each step, as rows of a batch have."""

    @dataclass
    class Luck:
        numbers: np.ndarray
        step: int = -1

        def random(self, n: int) -> np.ndarray:
            self.step += 1
            return self.numbers[self.step, :n]

    def transcripts(numbers: np.ndarray) -> list[tuple[int, ...]]:
        cache = Cache(ContextDecoder(hashed(7, eot_bias=5.0), 200))
        prefill = alone(cache.prefill((SOT, NOTIMESTAMPS), [1]))
        sampler = Sampler(1.0, numbers.shape[1], Luck(numbers))
        rules = Rules(TOKENIZER, GREEDY)
        paths = alone(sample(cache, prefill, rules=rules, sampler=sampler, max_tokens=12))
        return sorted(path.tokens for path in paths)

    numbers = np.random.default_rng(3).random((12, 5))
    together = transcripts(numbers)
    assert len({len(tokens) for tokens in together}) > 1
    one_by_one = [tokens for i in range(5) for tokens in transcripts(numbers[:, i : i + 1])]
    assert sorted(one_by_one) == together


def test_the_best_path_is_the_likeliest_for_its_length():
    short = Path(tokens=(1,), logprobs=(-1.0, -1.0), ended=True)
    long = Path(tokens=(1, 2, 3, 4), logprobs=(-1.0,) * 4 + (-0.5,), ended=True)
    assert best([short, long]) is long
    likelier = Path(tokens=(1,), logprobs=(-0.5, -0.5), ended=True)
    assert best([likelier, long]) is likelier


def test_a_prompt_gives_way_to_prefix_and_transcript():
    decoder = ContextDecoder(hashed(0, eot_bias=-99.0), 2000)
    context = Context(100, prompt=(1,) * 300, prefix=(2,) * 224)
    found = decode(decoder, TOKENIZER, options=GREEDY, context=context)
    assert len(found.tokens) == 100
    assert decoder.passes[0] + 100 <= decoder.n_text_ctx
    long_prompt = ContextDecoder(hashed(0), 2000)
    decode(long_prompt, TOKENIZER, options=GREEDY, context=Context(10, prompt=(1,) * 300))
    assert long_prompt.passes[0] == 1 + 223 + 2  # OpenAI's limit: half the context, less one


def test_a_long_prompt_takes_from_what_may_be_sampled():
    """As in openai-whisper: 223 tokens of prompt, and one token behind the last place."""
    decoder = ContextDecoder(hashed(0, eot_bias=-99.0), 2000)
    context = Context(224, prompt=(1,) * 300)
    found = decode(decoder, TOKENIZER, options=replace(GREEDY, loops=False), context=context)
    assert decoder.passes[0] == 1 + 223 + 2
    assert len(found.tokens) == 448 + 1 - decoder.passes[0]


def test_without_limits_nothing_is_a_loop():
    decoder = ContextDecoder(scripted([5], n_ctx=100), 2000)
    context = Context(100)
    found = decode(decoder, TOKENIZER, options=replace(GREEDY, loops=False), context=context)
    assert (found.loop, len(found.tokens)) == (None, 100)


@given(st.lists(st.integers(0, 255), max_size=300), st.integers(1, 224))
def test_a_long_prompt_loses_its_beginning(prompt, max_tokens):
    given: list[tuple[int, ...]] = []

    def predict(context: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        given.append(context)
        return hashed(0, eot_bias=99.0)(context)

    run(predict, Context(max_tokens, tuple(prompt)))
    said = given[-1][: given[-1].index(SOT)]
    if not prompt:
        assert said == ()
        return
    assert said[0] == TOKENIZER.startofprev
    assert list(said[1:]) == prompt[-223:]  # OpenAI's limit: half the context, less one


def test_a_prefix_that_fills_the_context_is_refused():
    with pytest.raises(ValueError, match="447 tokens"):
        run(hashed(0), Context(10, prefix=(1,) * 447))


# -- on the numpy reference ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> CheckedEngine:
    model = load.model("random")
    return CheckedEngine(network(model.dims, model.weights, alignment_heads=model.alignment_heads))


@pytest.fixture(scope="module")
def features(engine):
    return engine.encode(log_mel(load.samples("cards", 192), 128), audio_ctx=192)


def full_forward(decoder: Decoder, context: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Logits and alignment behind the whole context, from one pass of a new decoder."""
    order = np.arange(len(context))
    visible = np.zeros((len(context), decoder.n_slots), np.bool_)
    visible[:, : len(context)] = np.tri(len(context), dtype=np.bool_)
    logits, alignment = run_pass(decoder, np.array(context), order, order, visible, order[-1:])
    return logits[0], alignment


@given(seed=seeds)
def test_cached_steps_are_full_forward_passes(engine, features, seed):
    rng = np.random.default_rng(seed)
    cache = Cache(engine.decoder(features, 40))
    context = rng.integers(0, 300, rng.integers(1, 9)).tolist()
    path, _ = alone(cache.prefill([*context, 7, 8, 9], [0]))
    paths = [path.cut(len(context))] * 3  # a draft that was dropped, and three beams
    for _ in range(5):
        cache.keep(paths)
        chosen = rng.integers(0, len(paths), len(paths))
        paths = [paths[i].append(int(rng.integers(0, 300)), 0.0, 0.0) for i in chosen]
        paths, rows = alone(cache.extend(paths))
        for path, row in zip(paths, rows, strict=True):
            logits, alignment = full_forward(engine.decoder(features, 40), [*context, *path.tokens])
            np.testing.assert_allclose(row, logits, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(np.stack(path.rows), alignment, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "beam_size"), [("tiny.en", 3), ("random", 2), ("random", 5)])
def test_beam_search_on_a_model_is_the_textbook_s(name, beam_size):
    model = load.model(name)
    engine = CheckedEngine(
        network(model.dims, model.weights, alignment_heads=model.alignment_heads)
    )
    features = engine.encode(log_mel(load.samples("cards", 192), model.dims.n_mels), audio_ctx=192)
    tokenizer = Tokenizer(model.vocabulary, model.dims.n_vocab, multilingual=model.language is None)
    options = DecodingOptions(beam_size=beam_size)
    context = Context(12)
    n_slots = slots_needed(context, options=options, n_text_ctx=model.dims.n_text_ctx)
    found = decode(engine.decoder(features, n_slots), tokenizer, options=options, context=context)
    start = (*tokenizer.sot_sequence, tokenizer.notimestamps)
    expected = textbook_beam_search(
        lambda sequence: full_forward(engine.decoder(features, 60), (*start, *sequence))[0],
        Rules(tokenizer, options),
        beam_size=beam_size,
        max_tokens=12,
    )
    assert found.tokens == expected


@cache
def on_the_cpu() -> OnnxEngine:
    model = load.model("tiny.en")
    return build(network(model.dims, model.weights, alignment_heads=model.alignment_heads))


@pytest.mark.parametrize("clip", ["cards", "digits"])
def test_drafts_on_a_model_change_nothing(clip):
    model, engine = load.model("tiny.en"), on_the_cpu()
    features = engine.encode(log_mel(load.samples(clip, 448), 80), audio_ctx=448)
    tokenizer = Tokenizer(model.vocabulary, model.dims.n_vocab, multilingual=False)
    options = DecodingOptions()

    def greedy(draft: Sequence[int]) -> Decoded:
        context = Context(40, draft=tuple(draft))
        return decode(engine.decoder(features, 90), tokenizer, options=options, context=context)

    truth = greedy([])
    rng = np.random.default_rng(1)
    for _ in range(6):
        draft = list(truth.tokens[: rng.integers(0, len(truth.tokens) + 1)])
        draft += rng.integers(0, 50_000, rng.integers(0, 10)).tolist()
        found = greedy(draft)
        assert found.tokens == truth.tokens
        assert found.avg_logprob == pytest.approx(truth.avg_logprob, abs=1e-4)
        np.testing.assert_allclose(found.alignment, truth.alignment, atol=1e-3)
