"""Which files a journal folder holds, known without looking: only its `Folder` adds any.

A client may ask for any session, as often as it likes: that must not read a folder of thousands of
files. Files may vanish at any time, by whoever tidies up.
"""

from pathlib import Path

from streamd.journal.files import File, file_of, files_in


class Index:
    """The files of `folder`, by session.

    Raises
    ------
    OSError : it cannot be read
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: dict[str, tuple[str, ...]] = {}
        for file in files_in(folder):
            self.add(file)

    def of(self, session: str) -> list[File]:
        """The files of a session that are still there, oldest first."""
        files = self._noted(session)
        there = [file for file in files if file.path.exists()]
        if len(there) < len(files):
            self._names[session] = tuple(file.path.name for file in there)
        if not there:
            self._names.pop(session, None)
        return there

    def add(self, file: File) -> None:
        """Note a file that was made."""
        self._names[file.session] = (*self._names.get(file.session, ()), file.path.name)

    def newest(self, session: str) -> str:
        """When the session's newest file began, as its name says; empty if there is none."""
        return max((file.start for file in self._noted(session)), default="")

    def expire(self, before: float) -> None:
        """Remove the files that nothing was written to since then, in seconds since 1970."""
        for session in list(self._names):
            for file in self._noted(session):
                try:
                    if file.path.stat().st_mtime < before:
                        file.path.unlink()
                except FileNotFoundError:
                    pass  # somebody was faster
            self.of(session)

    def _noted(self, session: str) -> list[File]:
        """The files of a session, whether they are still there or not, oldest first."""
        found = (file_of(self.folder / name) for name in self._names.get(session, ()))
        return sorted(file for file in found if file)
