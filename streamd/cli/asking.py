"""Questions at the terminal; one of them is asked once: whether to keep what is said."""

import logging
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from streamd.config import Config
from streamd.options import OutputOptions
from streamd.system.disk import user_folder

log = logging.getLogger(__name__)


def can_ask(output: OutputOptions) -> bool:
    """Whether somebody is there who can answer."""
    return sys.stdin.isatty() and sys.stderr.isatty() and output.verbose >= 0


def agreed(question: str, *, otherwise: bool = True) -> bool:
    """Ask at the terminal; an empty line means `otherwise`, the end of the input no."""
    sys.stderr.write(f"{question} {'[Y/n]' if otherwise else '[y/N]'} ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
    agrees = ("y", "yes", "") if otherwise else ("y", "yes")
    return answer.strip().lower() in agrees and answer != ""


def with_answer(config: Config) -> Config:
    """Return the configuration with ``--keep`` if the user wants that of shared captions.

    They are asked at the first start at a terminal that has no option for what is stored, and the
    answer holds for all such starts. It is not asked where it cannot be remembered.
    """
    options, answered = config.journal, user_folder("state") / "keep"
    if options.keep != "" or options.folder or options.bus or options.record:
        return config
    try:
        answer = answered.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        answer = _ask(answered) if can_ask(config.output) else ""
    except (OSError, ValueError) as error:
        log.warning("%s: cannot be read: %s; nothing is kept", answered, error)
        answer = ""
    if answer != "yes":
        return config
    log.info("what is said is kept, as you once said: streamd library; rm %s ends it", answered)
    return replace(config, journal=replace(options, keep="auto"))


def _ask(answered: Path) -> str:
    from streamd.library.tables import folder_of  # SQLite takes long to import

    with suppress(OSError):
        answered.parent.mkdir(parents=True, exist_ok=True)
        answered.write_text("no\n", encoding="utf-8")
        question = "streamd: Keep what is said, text and audio, to search and hear it later"
        where = f"only on this machine, in {folder_of('auto', os.environ)}"
        answer = "yes" if agreed(f"{question}, {where}?", otherwise=False) else "no"
        answered.write_text(f"{answer}\n", encoding="utf-8")
        return answer
    return ""
