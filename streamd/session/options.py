"""What a user may want of a session."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How often and how far back a session looks; in frames."""

    step: int = 25
    """A partial is due after this much new audio; 0: only finals (the "VAD mode")."""
    length: int = 250
    """The window is trimmed to its uncommitted part when it gets longer than this."""
    mask_words: int = 0
    """The newest tentative words, so many, are not shown while somebody speaks: less flicker."""
    context_tokens: int = 64
    """Committed tokens before the window that the decoder gets as its prompt."""
    keep_context: bool = False
    """Whether the prompt reaches back into the utterances before this one."""
    language_after: int = 100
    """So much of an utterance says which language it is in; then it is held."""
    backlog: int = 30_000
    """Audio kept for an engine that is behind; what goes beyond is lost and reported (`Gap`)."""
