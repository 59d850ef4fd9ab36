"""The menu of streamd.app: start and stop captions, choose model and microphone, open the page.

``make_app.py`` puts it into the application. It needs rumps, the extra "menu-bar" of streamd.
"""

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

LOG = Path.home() / "Library" / "Logs" / "streamd.log"
PORT = 8765
STREAMD = [sys.executable, "-m", "streamd"]
AUTOMATIC = "Automatic"
"""The choice that leaves it to streamd."""
END_S = 15
"""How long streamd may take to write the last sentence."""


class Captions:
    """The process that captions the microphone, while there is one."""

    def __init__(self, log: Path) -> None:
        """`log` is the file for what streamd says; it is replaced at each start."""
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_on(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self, model: str, microphone: str) -> None:
        """Start captions; either choice may be `AUTOMATIC`."""
        options = ["--port", str(PORT)]
        options += ["--model", model] * (model != AUTOMATIC)
        options += ["--device", microphone] * (microphone != AUTOMATIC)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*STREAMD, *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def stop(self) -> None:
        """Have streamd finish the last sentence and end."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Stop, and wait for the end."""
        self.stop()
        if self._process is not None:
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def failure(self) -> str:
        """Why streamd ended by itself, once; empty if it did not."""
        if self._process is None or self.is_on:
            return ""
        code, self._process = self._process.returncode, None
        said = self._log.read_text(errors="replace").strip().splitlines()
        ended = code in (0, 130, 143, -signal.SIGTERM)
        return "" if ended else (said[-1] if said else f"streamd ended with {code}")


def listed(*command: str) -> list[dict[str, object]]:
    """What a command of streamd lists."""
    done = subprocess.run([*STREAMD, *command, "--json"], capture_output=True, check=False)
    found: list[dict[str, object]] = json.loads(done.stdout or "[]")
    return found


def models() -> list[str]:
    """The models that are on this machine."""
    return [str(each["name"]) for each in listed("models", "list") if each["state"]]


def microphones() -> list[str]:
    """The names of the microphones."""
    return [str(each["name"]) for each in listed("devices")]


def open_with_its_program(what: str | Path) -> None:
    """Show a page or a file as a double click does."""
    subprocess.run(["open", what], check=False)


def main() -> None:
    """Show the menu until somebody quits."""
    import rumps
    from AppKit import NSApplication, NSApplicationActivationPolicyAccessory

    # Without an icon in the Dock: that is Python's.
    NSApplication.sharedApplication().setActivationPolicy_(NSApplicationActivationPolicyAccessory)
    captions, chosen = Captions(LOG), {"Model": AUTOMATIC, "Microphone": AUTOMATIC}
    app = rumps.App("streamd", title="CC", quit_button=None)

    def start(_: object) -> None:
        captions.start(chosen["Model"], chosen["Microphone"])
        show()

    def stop(_: object) -> None:
        captions.stop()

    def leave(_: object) -> None:
        captions.close()
        rumps.quit_application()

    def choose(menu: rumps.MenuItem, item: rumps.MenuItem) -> None:
        chosen[menu.title] = item.title
        for each in menu.values():
            each.state = int(each is item)

    def show(_: object = None) -> None:
        is_on = captions.is_on
        app.title = "CC \u25cf" if is_on else "CC"
        starts.set_callback(None if is_on else start)
        stops.set_callback(stop if is_on else None)
        if why := captions.failure():
            rumps.alert("streamd", why)

    starts, stops = rumps.MenuItem("Start"), rumps.MenuItem("Stop")
    menus = [rumps.MenuItem("Model"), rumps.MenuItem("Microphone")]
    for menu, names in zip(menus, (models(), microphones()), strict=True):
        for name in (AUTOMATIC, *names):
            menu.add(rumps.MenuItem(name, callback=partial(choose, menu)))
        menu[AUTOMATIC].state = 1
    page = f"http://127.0.0.1:{PORT}/"
    app.menu = [
        starts,
        stops,
        None,
        *menus,
        None,
        rumps.MenuItem("Open the Page", callback=lambda _: open_with_its_program(page)),
        rumps.MenuItem("Show the Log", callback=lambda _: open_with_its_program(LOG)),
        rumps.MenuItem("Quit", callback=leave),
    ]
    rumps.Timer(show, 1).start()
    app.run()


if __name__ == "__main__":
    main()
