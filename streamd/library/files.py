"""Sessions of a library as files for programs, with names and numbers or without."""

from websockets.http11 import Response

from streamd.errors import ConfigError
from streamd.library.anonymous import anonymised, as_csv
from streamd.library.shelf import Shelf
from streamd.server.exchange import plain, respond
from streamd.server.transcripts import TYPES, WriteTranscript, file_headers
from streamd.sinks.formats import SEGMENTED
from streamd.sinks.writing import in_sentences


def transcript_file(
    shelf: Shelf, write: WriteTranscript, number: int, form: str, *, anonymous: bool
) -> Response:
    """Return a session as a file in a format, as it was corrected.

    Raises `ConfigError` if there is no such session.
    """
    if form not in TYPES:
        return plain(400, f"format must be one of: {', '.join(TYPES)}")
    title, said, names = shelf.run(number).session, shelf.read(number), shelf.names(number)
    if form not in SEGMENTED:
        said = in_sentences(said)
    if anonymous:
        title = f"session-{number}"
        said, names, _ = anonymised(said, names, shelf.names_elsewhere(number))
    try:
        text = write(said, form, names, title)
    except ConfigError as error:
        return plain(501, str(error))
    return respond(200, text, file_headers(f"{title}.{form}", form))


def replaced_list(shelf: Shelf, number: int) -> Response:
    """Return what `transcript_file` replaces if it is anonymous. Raises `ConfigError` as that."""
    shelf.run(number)
    known = shelf.names_elsewhere(number)
    _, _, listed = anonymised(shelf.read(number), shelf.names(number), known)
    return respond(
        200, as_csv(listed).encode(), file_headers(f"session-{number}.replaced.csv", "csv")
    )
