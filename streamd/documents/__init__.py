"""Documents of users, read for their words: text, Markdown, HTML, Word, PowerPoint, PDF."""

from streamd.documents.confined import DocumentError as DocumentError
from streamd.documents.confined import read_document as read_document
