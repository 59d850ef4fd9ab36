"""Text to token ids and back, by tiktoken on the model's own byte-pair ranks.

The special tokens follow the text tokens in OpenAI's order, so they follow from two counts. Source:
openai/whisper ``tokenizer.py``.
"""

import codecs
import string
from collections.abc import Iterable, Iterator, Sequence
from copy import copy

import tiktoken

from streamd.errors import ConfigError, ModelError
from streamd.language import LANGUAGES, SPACELESS
from streamd.models.text_tokens import TextTokens

_GPT2_PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
_N_TIMESTAMPS = 1501
_N_OTHER_SPECIALS = 8
"""eot, sot, translate, transcribe, startoflm, startofprev, nospeech, notimestamps."""
_ANNOTATING = """
" # ( ) * + / : ; < = > @ [ \\ ] ^ _ ` { | } ~ 「 」 『 』
<< >> <<< >>> -- --- -( -[ (' (" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪
"""
_MUSIC = tuple("♩♪♫♬♭♮♯")
"""The first token of each is enough, since the symbols U+2640..267F share two bytes."""
REPLACEMENT = "\ufffd"
"""What stands in a decoded text for bytes that are no UTF-8: the model may write any."""


_MOST_PIECES = 50_000
"""So many pieces of texts are looked up no faster than all tokens are taken."""
_MOST_KNOWN = 50_000
"""Characters of the texts whose tokens are kept: words, and prompts, which each window has."""


class Tokenizer:
    """A model's vocabulary for one language and task, with OpenAI's names for special tokens.

    `timestamp_begin` is 0.00 s, and each token after it is 20 ms later. `non_speech_tokens` are
    annotations: speaker tags, brackets, music notes. A transcript starts with `sot_sequence`:
    (sot,), or (sot, language, task).
    """

    def __init__(
        self,
        text_tokens: TextTokens,
        n_vocab: int,
        *,
        multilingual: bool,
        language: str = "en",
        task: str = "transcribe",
    ) -> None:
        """Build from the text tokens and the size of the whole vocabulary.

        Raises `ConfigError` for a language or task that the model does not know, and `ModelError`
        if the counts do not fit each other.
        """
        n_text = len(text_tokens)
        n_languages = n_vocab - n_text - _N_TIMESTAMPS - _N_OTHER_SPECIALS
        if not 0 <= n_languages <= len(LANGUAGES):
            raise ModelError(f"{n_vocab} tokens, {n_text} of text: not a Whisper vocabulary")
        self.n_vocab = n_vocab
        self.languages = LANGUAGES[:n_languages]
        self.multilingual = multilingual
        self._text_tokens = text_tokens
        self._known: dict[str, tuple[int, ...]] = {}
        self.eot = n_text
        self.sot = n_text + 1
        after = self.sot + 1 + n_languages
        self.translate, self.transcribe, self.startoflm, self.startofprev = range(after, after + 4)
        self.nospeech, self.notimestamps, self.timestamp_begin = range(after + 4, after + 7)
        self.non_speech_tokens = self._annotations()
        self.language = language
        self._set_task(task)

    def with_task(self, task: str) -> "Tokenizer":
        """Return the same for this task; empty: for the same. Raises `ConfigError`."""
        other = copy(self)
        if task:
            other._set_task(task)
        return other

    def _set_task(self, task: str) -> None:
        if task not in {"transcribe", "translate"}:
            raise ConfigError(f"unknown task {task!r}; use transcribe or translate")
        self._task_token = self.translate if task == "translate" else self.transcribe
        self.translates = self.multilingual and task == "translate"
        self.sot_sequence = self.sot_sequence_for(self.language)

    def sot_sequence_for(self, language: str) -> tuple[int, ...]:
        """The tokens that a transcript in `language` starts with. Raises `ConfigError`."""
        if not self.multilingual:
            return (self.sot,)
        if language not in self.languages:
            known = " ".join(self.languages)
            raise ConfigError(f"unknown language {language!r}; the model knows {known}")
        return (self.sot, self.sot + 1 + self.languages.index(language), self._task_token)

    def written(self, language: str) -> str:
        """The language of the text when `language` is spoken."""
        return "en" if self.translates else language

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of `text`, none of them special."""
        return self.encode_each([text])[0]

    def encode_each(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Token ids of several texts, which takes less time than one after another."""
        found = {text: self._known.get(text) for text in texts}
        if new := [text for text, tokens in found.items() if tokens is None]:
            encoded = self._encoded(new)
            if sum(map(len, self._known)) > _MOST_KNOWN:
                self._known.clear()
            self._known |= {text: encoded[text] for text in new if len(text) < _MOST_KNOWN}
            found |= encoded
        return [found[text] or () for text in texts]

    def _encoded(self, texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
        words = {text: text.encode() for text in texts if text.removeprefix(" ").isalpha()}
        ids = self._text_tokens.among(words.values())
        found: dict[str, tuple[int, ...]] = {text: () for text in texts if not text}
        found |= {text: (ids[word],) for text, word in words.items() if word in ids}
        if rest := [text for text in texts if text not in found]:
            encoding = self._encoding(rest)
            found |= {text: tuple(encoding.encode_ordinary(text)) for text in rest}
        return found

    def _encoding(self, texts: Sequence[str]) -> tiktoken.Encoding:
        """What encodes these texts: tiktoken, with the tokens that occur in them.

        It joins neighbours as long as that makes a token, so no other token counts. Its tables of
        all of them take 13 MB.
        """
        # as tiktoken treats half of a surrogate pair
        fixed = [
            text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts
        ]
        data, longest = [text.encode() for text in fixed], self._text_tokens.longest
        pieces: Iterable[bytes] = self._text_tokens
        if sum(len(text) * min(len(text), longest) for text in data) < _MOST_PIECES:
            pieces = {piece for text in data for piece in _pieces(text, longest)}
        ranks = self._text_tokens.among(pieces)
        return tiktoken.Encoding(
            "whisper", pat_str=_GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={}
        )

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """Token ids of `text` as the beginning of a sentence."""
        text = text.strip()
        return self.encode(f" {text}") if text else ()

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of the text tokens among `tokens`, with U+FFFD for invalid UTF-8."""
        return self._bytes(tokens).decode("utf-8", errors="replace")

    def whole(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """`tokens` without an incomplete character at the end."""
        kept = tuple(tokens)
        while kept:
            decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
            decoder.decode(self._bytes(kept))
            if not decoder.getstate()[0]:
                break
            kept = kept[:-1]
        return kept

    def _annotations(self) -> tuple[int, ...]:
        """Not common punctuation, but hyphens and apostrophes at the beginning of a word."""
        refused = {self.encode(" -")[0], self.encode(" '")[0]}
        symbols = [blank + each for each in (*_ANNOTATING.split(), *_MUSIC) for blank in ("", " ")]
        for symbol, tokens in zip(symbols, self.encode_each(symbols), strict=True):
            if len(tokens) == 1 or symbol.strip() in _MUSIC:
                refused.add(tokens[0])
        return tuple(sorted(refused))

    def split_words(
        self, tokens: Sequence[int], language: str | None = None
    ) -> list[tuple[str, tuple[int, ...]]]:
        """Cut text tokens into words, each with its text and tokens.

        They are cut at blanks and punctuation; in a language without blanks, at every character.
        """
        every = self.characters(tokens)
        if self.written(language or self.language) in SPACELESS:
            return every
        words: list[tuple[str, tuple[int, ...]]] = []
        for text, ids in every:
            if not words or text.startswith(" ") or text.strip() in string.punctuation:
                words.append((text, ids))
            else:
                words[-1] = (words[-1][0] + text, words[-1][1] + ids)
        return words

    def characters(self, tokens: Sequence[int]) -> list[tuple[str, tuple[int, ...]]]:
        """The shortest runs of tokens that decode to whole characters."""
        full = self.decode(tokens)
        parts: list[tuple[str, tuple[int, ...]]] = []
        pending: tuple[int, ...] = ()
        offset = 0
        for token in tokens:
            pending += (token,)
            text = self.decode(pending)
            broken = text.find(REPLACEMENT)
            at = offset + broken
            if broken < 0 or (at < len(full) and full[at] == REPLACEMENT):
                parts.append((text, pending))
                pending = ()
                offset += len(text)
        if pending:
            parts.append((self.decode(pending), pending))
        return parts

    def _bytes(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self._text_tokens[token] for token in tokens if 0 <= token < self.eot)


def _pieces(text: bytes, longest: int) -> Iterator[bytes]:
    ends = ((begin, begin + n) for begin in range(len(text)) for n in range(1, longest + 1))
    return (text[begin:end] for begin, end in ends if end <= len(text))
