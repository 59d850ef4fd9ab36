"""The text of documents of all kinds, and of what only looks like one."""

import io
import zipfile
import zlib
from tempfile import TemporaryFile

import pytest

from streamd.documents import DocumentError, confined, read_document, texts

SAID = "Ana Botín"


def word():
    from docx import Document

    document = Document()
    document.add_paragraph(SAID)
    document.add_table(1, 1).cell(0, 0).text = "in a table"
    return saved(document)


def slides():
    from pptx import Presentation

    presentation = Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[1])
    slide.shapes.title.text = SAID
    slide.notes_slide.notes_text_frame.text = "in the notes"
    return saved(presentation)


def saved(document):
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def pdf(content=b"BT /F1 12 Tf 10 50 Td (Ana Bot\\355n) Tj ET", *, packed=False):
    """A page of PDF, by the hand of its specification (ISO 32000-1, annex H)."""
    filtered = zlib.compress(content) if packed else content
    kind = b" /Filter /FlateDecode" if packed else b""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 100] /Contents 4 0 R"
        b" /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d%s >>\nstream\n%s\nendstream" % (len(filtered), kind, filtered),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    out, offsets = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    rows = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    table = b"xref\n0 6\n0000000000 65535 f \n" + rows
    return out + table + b"trailer << /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % len(out)


def read(data, name):
    with TemporaryFile() as file:
        file.write(data)
        return read_document(file, name)


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a.txt", SAID.encode(), SAID),
        ("a.TXT", SAID.encode("utf-16"), SAID),
        ("notes", b"\xef\xbb\xbf" + SAID.encode(), SAID),
        ("a.md", f"# {SAID}\n```\ncode\n```\n[x](http://y)".encode(), f"# {SAID}\n\n[x]"),
        ("a.html", b"<p>Ana&nbsp;Bot&iacute;n</p><script>x</script>", f"\n{SAID}\n"),
        ("a.docx", word, f"{SAID}\nin a table"),
        ("a.pptx", slides, f"{SAID}\n\nin the notes"),
        ("a.pdf", pdf, SAID),
    ],
)
def test_the_text_of_a_document_is_read(name, data, text):
    said = read(data() if callable(data) else data, name)
    assert [line for line in said.split("\n") if line.strip()] == [
        line for line in text.split("\n") if line.strip()
    ]


@pytest.mark.parametrize("name", ["a.pdf", "a.docx", "a.pptx", "a.txt"])
@pytest.mark.parametrize("data", [b"\x00\x01garbage" * 100, b"PK\x03\x04" + b"\0" * 200])
def test_what_is_none_is_refused_in_a_line(name, data):
    with pytest.raises(DocumentError, match="cannot be read") as refusal:
        read(data, name)
    assert "\n" not in str(refusal.value)


def encrypted_pdf() -> bytes:
    from pypdf import PdfWriter

    out, writer = io.BytesIO(), PdfWriter(io.BytesIO(pdf()))
    writer.encrypt("secret", algorithm="RC4-128")
    writer.write(out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.docx", bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600)), ("a.pdf", encrypted_pdf)],
)
def test_a_password_is_named(name, data):
    with pytest.raises(DocumentError, match=r"cannot be read: it has a password.*: save it"):
        read(data() if callable(data) else data, name)


def test_a_document_that_unpacks_to_more_than_its_memory_is_refused():
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(word())) as good, zipfile.ZipFile(out, "w", 8) as bomb:
        for name in good.namelist():
            if name != "word/document.xml":
                bomb.writestr(name, good.read(name))
        with bomb.open("word/document.xml", "w") as part:
            part.write(b"<w:document>")
            for _ in range(600):
                part.write(b" " * (1 << 20))
    assert len(out.getvalue()) < 5 << 20
    with pytest.raises(DocumentError, match=r"too much memory|too long|it is damaged"):
        read(out.getvalue(), "bomb.docx")


def test_a_document_that_keeps_the_reader_busy_is_ended(monkeypatch):
    monkeypatch.setattr(confined, "_WALL_S", 0.0)
    with pytest.raises(DocumentError, match="too long"):
        read(pdf(), "a.pdf")


def test_a_large_document_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr(confined, "MOST_BYTES", 10)
    with pytest.raises(DocumentError, match="more than"):
        read(b"a" * 11, "a.txt")


def test_a_long_text_is_cut(monkeypatch):
    monkeypatch.setattr(texts, "MOST_CHARACTERS", 100)
    assert len(texts.text_of(b"word " * 1_000, ".txt")) == 100
    # Compatibility normalisation makes 18 characters of this one.
    assert len(texts.text_of("\ufdfa\n".encode() * 1_000, ".txt")) == 100


def test_without_its_library_a_kind_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(confined, "find_spec", lambda name: None)
    with pytest.raises(DocumentError, match=r"\.pdf needs libraries: .*\[context\]"):
        read(pdf(), "a.pdf")
