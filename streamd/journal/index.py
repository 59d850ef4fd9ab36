"""Which files a journal folder holds, known without looking: only its `Folder` adds any.

A client may ask for any session, as often as it likes: that must not read a folder of thousands of
files. Files may vanish at any time, by whoever tidies up.
"""

from bisect import insort
from pathlib import Path

from streamd.journal.files import File, files_in


class Index:
    """The files of `folder`, by session.

    Raises
    ------
    OSError : it cannot be read
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, list[File]] = {}
        for file in files_in(folder):
            self.add(file)

    def of(self, session: str) -> list[File]:
        """The files of a session that are still there, oldest first."""
        files = [file for file in self._files.pop(session, ()) if file.path.exists()]
        if files:
            self._files[session] = files
        return list(files)

    def add(self, file: File) -> None:
        """Note a file that was made."""
        insort(self._files.setdefault(file.session, []), file)

    def newest(self, session: str) -> str:
        """When the session's newest file began, whether it is still there or not; or empty."""
        return max((file.start for file in self._files.get(session, ())), default="")

    def expire(self, before: float) -> None:
        """Remove the files that nothing was written to since then, in seconds since 1970."""
        for session in list(self._files):
            for file in self.of(session):
                try:
                    if file.path.stat().st_mtime < before:
                        file.path.unlink()
                except FileNotFoundError:
                    pass  # somebody was faster
            self.of(session)
