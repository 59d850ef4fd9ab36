"""The text of a document, as far as its words matter: no layout, no pictures.

The libraries for Word, PowerPoint and PDF are an extra. This runs in a process of its own
(`confined`), which can load no module once it has begun: `prepare` loads what a format needs.
"""

import io
import re
import tempfile  # noqa: F401 - pypdf imports it late
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from html.parser import HTMLParser
from importlib import import_module
from pathlib import PurePath
from pkgutil import walk_packages
from types import MappingProxyType
from unicodedata import normalize

MOST_CHARACTERS = 1_000_000
"""Of a document: 500 pages. For twice as much, `whisper.terms` takes up to 6 CPU seconds."""
_MOST_PAGES = 2_000  # beyond MOST_CHARACTERS even at one in four pages with text
_COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""Microsoft's compound file, in which encrypted documents are, too ([MS-OFFCRYPTO], 1.3.2)."""
_CODECS = ("ascii", "latin-1", "cp1252", "cp437", "utf-8-sig", "utf-16", "utf-16-be", "utf-16-le")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\([^)\n]*\)")
_INVISIBLE = frozenset({"script", "style", "template", "noscript", "svg"})
_BLOCKS = frozenset(
    (
        *("p", "div", "li", "td", "th", "tr", "br", "section", "article", "title", "dt", "dd"),
        *("h1", "h2", "h3", "h4", "h5", "h6"),
    )
)


class _Visible(HTMLParser):
    """Collects the text of a page that is shown; blocks are lines."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._n_hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Begin an element."""
        self._n_hidden += tag in _INVISIBLE
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        """End an element."""
        self._n_hidden = max(0, self._n_hidden - (tag in _INVISIBLE))
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        """Take text."""
        if not self._n_hidden:
            self.parts.append(data)


def _plain(data: bytes) -> Iterator[str]:
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    yield data.decode(encoding, "replace")


def _markdown(data: bytes) -> Iterator[str]:
    for text in _plain(data):
        yield _LINK.sub("]", _FENCE.sub("", text))


def _html(data: bytes) -> Iterator[str]:
    parser = _Visible()
    for text in _plain(data):
        parser.feed(text)
    parser.close()
    yield "".join(parser.parts)


def _word(data: bytes) -> Iterator[str]:
    from docx import Document
    from docx.oxml.ns import qn
    from docx.text.paragraph import Paragraph

    document = Document(io.BytesIO(data))
    # Those of tables and text boxes, too.
    for element in document.element.body.iter(qn("w:p")):
        yield Paragraph(element, document).text


def _slides(data: bytes) -> Iterator[str]:
    from pptx import Presentation
    from pptx.oxml.ns import qn

    for slide in Presentation(io.BytesIO(data)).slides:
        notes = [slide.notes_slide] if slide.has_notes_slide else []
        for part in (slide, *notes):
            for paragraph in part.element.iter(qn("a:p")):
                yield "".join(text.text or "" for text in paragraph.iter(qn("a:t")))


def _pages(data: bytes) -> Iterator[str]:
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise ValueError("it has a password: save it without one")
    for page in reader.pages[:_MOST_PAGES]:
        # Lines break anywhere, also within words.
        yield re.sub(r"(?<=\w)[-\u00ad]\n(?=[a-z])", "", page.extract_text()).replace("\n", " ")


_Reader = Callable[[bytes], Iterator[str]]
_READERS: Mapping[str, _Reader] = MappingProxyType(
    {
        ".txt": _plain,
        ".md": _markdown,
        ".html": _html,
        ".htm": _html,
        ".docx": _word,
        ".pptx": _slides,
        ".pdf": _pages,
    }
)
"""By the end of the name; other documents are taken for plain text, unless they have zero bytes."""
LIBRARIES: Mapping[str, str] = MappingProxyType({".docx": "docx", ".pptx": "pptx", ".pdf": "pypdf"})
"""Packages of the extra that formats need."""


def kind_of(name: str) -> str:
    """Return the end of a document's name, if it tells how to read it; ``.txt`` otherwise."""
    ending = PurePath(name).suffix.lower()
    return ending if ending in _READERS else ".txt"


def prepare(kind: str) -> None:
    """Load what a kind of document needs. Raises `ImportError`."""
    for codec in _CODECS:
        "".encode(codec)
    if kind in LIBRARIES:
        library = import_module(LIBRARIES[kind])
        for module in walk_packages(library.__path__, f"{library.__name__}."):
            with suppress(ImportError):  # what it can do without
                import_module(module.name)


def text_of(data: bytes, kind: str) -> str:
    """Return the text, or its first `MOST_CHARACTERS`; raises what the libraries raise.

    `ValueError` says that it is no document of this kind.
    """
    if data.startswith(_COMPOUND):
        raise ValueError("it has a password, or is of Office 97: save it anew as .docx or .pptx")
    if kind == ".txt" and b"\0" in data[:1_000] and data[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        raise ValueError("it is no text, and not called .docx, .pptx or .pdf")
    lines, n_left = [], MOST_CHARACTERS
    for line in _READERS[kind](data):
        lines.append(line[:n_left])
        n_left -= len(line) + 1
        if n_left <= 0:
            break
    # A PDF has ligatures, and Word hard blanks, that no vocabulary has.
    # One character may become 18.
    return normalize("NFKC", "\n".join(lines))[:MOST_CHARACTERS]
