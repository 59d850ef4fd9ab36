"""Makes streamd.app, which shows captions from the menu bar: ``python make_app.py [FOLDER]``.

Run it with the Python of the environment that has streamd with its extra "menu-bar": the
application starts that one, so the environment must stay where it is; the application can be
moved. It is signed for this Mac alone. The compiler is that of Xcode's command line tools, which
bring make, too.
"""

import json
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import streamd

HERE = Path(__file__).parent
INFO = {
    "CFBundleExecutable": "streamd",
    "CFBundleIdentifier": "streamd.captions",
    "CFBundleInfoDictionaryVersion": "6.0",
    "CFBundleName": "streamd",
    "CFBundlePackageType": "APPL",
    "CFBundleShortVersionString": streamd.__version__,
    "CFBundleVersion": streamd.__version__,
    "LSMinimumSystemVersion": "13.0",
    "LSUIElement": True,  # in the menu bar, not in the Dock
    "NSMicrophoneUsageDescription": "streamd writes captions of what is said. "
    "The sound stays on this Mac.",
}


def main(folder: Path) -> Path:
    """Make the application in a folder, in place of an older one; return its path."""
    app = folder / "streamd.app"
    shutil.rmtree(app, ignore_errors=True)
    executable = app / "Contents" / "MacOS" / "streamd"
    resources = app / "Contents" / "Resources"
    for part in (executable.parent, resources):
        part.mkdir(parents=True)
    (app / "Contents" / "Info.plist").write_bytes(plistlib.dumps(INFO))
    shutil.copy(HERE / "menu.py", resources)
    python = json.dumps(sys.executable, ensure_ascii=False)  # JSON's strings are C's
    command = ["cc", "-Wall", "-Werror", f"-DPYTHON={python}", "-o", str(executable)]
    subprocess.run([*command, str(HERE / "launcher.c")], check=True)
    if shutil.which("codesign"):
        subprocess.run(["codesign", "--sign", "-", "--force", app], check=True)
    return app


if __name__ == "__main__":
    sys.stderr.write(f"made {main(Path(*sys.argv[1:]))}\n")
