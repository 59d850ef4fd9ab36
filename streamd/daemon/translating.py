"""What translates captions: one translator of the process, for readers and files."""

from collections.abc import Sequence
from functools import cache, lru_cache, partial
from importlib.util import find_spec

from streamd.config import Config
from streamd.daemon import build, phrases
from streamd.errors import ConfigError, ModelError, how_to_install
from streamd.models.store.cache import StorePaths, places
from streamd.sinks import Sink
from streamd.streams.hub import Hub
from streamd.translation import store
from streamd.translation.files import TranslatedSink
from streamd.translation.service import Translations
from streamd.translation.translator import Translator
from streamd.whisper.vocabulary import parse


def check(config: Config) -> None:
    """Raise `ModelError` or `ConfigError` if the wanted languages cannot be translated into.

    Where several languages may be spoken, a model from any of them will do.
    """
    wanted = config.output.languages
    if not wanted:
        return
    if find_spec("fxtranslate") is None:
        raise ConfigError(f"--translate-into needs a library: {how_to_install('translate')}")
    translator, spoken = shared(), build.languages_of(build.default_choices(config).language)
    if config.decoding.task == "translate":
        spoken = ("en",)
    for target in wanted:
        if len(spoken) == 1:
            translator.route(spoken[0], target)
        elif not any(way[1] == target for way in store.directions(places())):
            name = f"en-{target}" if target != "en" else "es-en"
            raise ModelError(
                f"--translate-into {target}: no model is here that translates into it; run, for "
                f"one, streamd models get {store.PREFIX}{name}"
            )


def shared() -> Translator:
    """Return the translator of this process, with the models that are here."""
    return _translator(places())


@cache
def _translator(here: StorePaths) -> Translator:
    return Translator(partial(store.open_model, here), store.directions(here))


def translations(config: Config) -> Translations | None:
    """Return what translates for readers; None if no language is offered."""
    wanted = config.output.languages
    known = _phrases(config.decoding.expected) if wanted else ()

    def names(hub: Hub) -> Sequence[str]:
        return (*known, *_phrases(phrases.one_a_line(hub.choices.hotwords)))

    return Translations(shared(), wanted, names) if wanted else None


def translated(config: Config, sink: Sink, into: str) -> Sink:
    """Return a sink that gives `sink` the captions in another language."""
    # Whisper's translations are English, whatever was spoken.
    written = "en" if config.decoding.task == "translate" else ""
    return TranslatedSink(sink, shared(), into, names=names_in(config), written=written)


def names_in(config: Config) -> Sequence[str]:
    """Return what is kept as it is spelled in files."""
    return _phrases(f"{config.decoding.expected}\n{phrases.one_a_line(config.decoding.hotwords)}")


@lru_cache(maxsize=16)
def _phrases(lines: str) -> tuple[str, ...]:
    return tuple(phrase.text for phrase in parse(lines))
