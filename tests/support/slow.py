"""Which tests are slow: those that tests/slow.txt lists, which `make slow-tests` writes.

It has each test function that takes half a CPU second in the mean of its parameters, with the
processes that it starts; and with `[1:]` behind its name each that takes three for all of them, of
which the first runs. CPU time hardly depends on what else a machine does.
What several tests share, as the fixture of a module, is left out: it would count for whichever runs
first.
"""

import resource
import time
from collections import Counter, defaultdict
from pathlib import Path
from statistics import mean

import pytest

LIST = Path(__file__).parents[1] / "slow.txt"
SLOW_S, LONG_S = 0.5, 3.0
"""CPU seconds from which on a test is slow: in the mean of its parameters, and with all of them."""
REST = "[1:]"
"""All parameters but the first."""


def function(nodeid: str) -> str:
    """Return the name of a test without its parameters."""
    return nodeid.partition("[")[0]


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the slow tests out of what was collected."""
    slow, n_before = set(LIST.read_text().splitlines()), Counter()
    kept, dropped = [], []
    for item in items:
        name = function(item.nodeid)
        n_before[name] += 1
        is_slow = name in slow or (n_before[name] > 1 and name + REST in slow)
        (dropped if is_slow else kept).append(item)
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept


def cpu_seconds() -> float:
    """Return what this process has taken, and those of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Measuring:
    """A plugin of pytest that measures all tests, in its processes too, and writes the list."""

    def __init__(self) -> None:
        self._began = self._shared = 0.0
        self._taken: dict[str, list[float]] = defaultdict(list)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self):
        """Note when a test begins, before its fixtures are made."""
        self._began, self._shared = cpu_seconds(), 0.0
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        """Note what is made for other tests, too."""
        before = cpu_seconds()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self._shared += cpu_seconds() - before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call):
        """Report what a test took, to the process that writes the list."""
        report = yield
        if call.when == "teardown":
            took = cpu_seconds() - self._began - self._shared
            report.user_properties.append(("cpu_seconds", took))
        return report

    def pytest_runtest_logreport(self, report):
        """Take what a test took, here or in another process."""
        if report.when == "teardown":
            took = dict(report.user_properties).get("cpu_seconds", 0.0)
            self._taken[function(report.nodeid)].append(took)

    def pytest_terminal_summary(self, terminalreporter, config):
        """Write the list, unless this is one of several processes."""
        if hasattr(config, "workerinput"):
            return
        taken = self._taken.items()
        slow = {name for name, took in taken if mean(took) >= SLOW_S}
        long = {name for name, took in taken if sum(took) >= LONG_S} - slow
        listed = sorted([*slow, *(name + REST for name in long)])
        LIST.write_text("".join(f"{name}\n" for name in listed))
        total = sum(map(sum, self._taken.values()))
        others = sum(
            took[0] if name in long else sum(took) for name, took in taken if name not in slow
        )
        line = f"all tests: {total:.0f} CPU s; {len(listed)} are slow, the others take {others:.0f}"
        terminalreporter.write_line(line)
