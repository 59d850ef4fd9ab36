"""A thousand nodes and a hundred thousand sessions, computed from what one machine measured.

    python benchmarks/cluster.py --scale > FILE; python benchmarks/thousand_nodes.py FILE

Each node has 100 sessions. What they ask of NATS comes at random, or when streamd would ask, for
half a minute: finals, leases, reads, arrivals; a node that dies, and a hundredth of the nodes that
are restarted for an upgrade, whose sessions move to others at once. A stream of NATS answers one
request after the other, on a core of its own, in the time that was measured. Prints how busy each
is, and how long requests wait, for 10 to 1,000 nodes on one NATS cluster; last a JSON line, which
belongs into scale.json with its date, commit and load (`charts.py` draws it).
"""

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tables import table

N_NODES = (10, 20, 50, 100, 200, 500, 1000)
N_SESSIONS = 100
"""Of a node; 200 windows of half a second in each second are more than most machines compute."""
SECONDS = 30.0
FINAL_S, LENGTH_S = 4.0, 1800.0
"""A final every so often, and how long a session is."""
SILENT = 0.3
"""Share of the time in which nobody speaks; then the lease has the progress instead of finals."""
BEAT_S = 2.0
TOLD = 2.5
"""Events a second that are told to other nodes without being stored: partials and statistics."""
UPGRADED = 0.01
"""Share of the nodes that are restarted together."""
UPGRADE_S, DEATH_S = 10.0, 20.0
"""When that happens, and when a node dies."""
_BACK_S = 1.0
"""Within which clients are back at another node."""

Times = NDArray[np.float64]


def queue(arrivals: Times, costs: Times) -> Times:
    """Return how long each request waits for those before it, in seconds; all are in order."""
    spent = np.cumsum(costs)
    begun = np.maximum.accumulate(arrivals - (spent - costs)) + (spent - costs)
    return begun - arrivals


def requests(n_nodes: int, leases_s: float, rng: np.random.Generator) -> dict[str, Times]:
    """Return when each kind of request comes (seconds).

    `leases_s`: leases that a silent session stores a second.
    """
    n = n_nodes * N_SESSIONS

    def at_random(a_second: float) -> Times:
        return rng.uniform(0, SECONDS, rng.poisson(a_second * SECONDS))

    def asked_for(changes_s: float) -> float:
        """Share of the beats that ask for a session: each fourth after the last change."""
        if changes_s == 0:
            return 0.25
        same = math.exp(-BEAT_S * changes_s)
        return (1 - same) * same**4 / (1 - same**4)

    speaking = 1 - SILENT
    unchanged = speaking * asked_for(1 / FINAL_S) + SILENT * asked_for(leases_s)
    beats = np.concatenate(
        [np.arange(rng.uniform(0, BEAT_S), SECONDS, BEAT_S) for _ in range(n_nodes)]
    )
    asked = (beats[:, np.newaxis] + np.arange(N_SESSIONS) * 1e-3)[
        rng.random((len(beats), N_SESSIONS)) < unchanged
    ]
    new = at_random(n / LENGTH_S)
    n_moved = max(1, round(UPGRADED * n_nodes)) * N_SESSIONS
    upgraded = UPGRADE_S + rng.uniform(0, _BACK_S, n_moved)
    bereft = DEATH_S + rng.uniform(0, _BACK_S, N_SESSIONS)
    moved = np.concatenate((upgraded, bereft))
    return {
        # A new session stores its head, who feeds it, and in the end that it is over.
        "line stored": np.concatenate(
            (at_random(speaking * n / FINAL_S), new, new, at_random(n / LENGTH_S), moved, moved)
        ),
        "lines read": moved,
        # Whoever ends lets a lease go, and whoever goes on takes it.
        "lease stored": np.concatenate(
            (at_random(SILENT * leases_s * n), beats, new, moved, upgraded)
        ),
        "lease read": np.concatenate((asked, new, moved)),
    }


STREAMS = {"log": ("line stored", "lines read"), "leases": ("lease stored", "lease read")}


def simulated(costs: Mapping[str, float], leases_s: float) -> list[dict[str, float]]:
    """Return a row for each number of nodes; `costs`: CPU seconds of NATS for each request."""
    rng, rows = np.random.default_rng(0), []
    for n_nodes in N_NODES:
        asked = requests(n_nodes, leases_s, rng)
        row: dict[str, float] = {"nodes": n_nodes, "sessions": n_nodes * N_SESSIONS}
        for stream, kinds in STREAMS.items():
            arrivals = np.concatenate([asked[kind] for kind in kinds])
            # Some requests take longer than others: the time that was measured is their mean.
            means = np.concatenate([np.full(len(asked[kind]), costs[kind]) for kind in kinds])
            order = np.argsort(arrivals)
            took = means[order] * rng.exponential(size=len(order))
            waits, arrivals = queue(arrivals[order], took), arrivals[order]
            usual = (arrivals > 1) & (arrivals < UPGRADE_S)
            row |= {
                f"{stream} busy %": round(100 * float(means.sum()) / SECONDS, 1),
                f"{stream} p99 ms": round(1000 * float(np.percentile(waits[usual], 99)), 1),
                f"{stream} upgrade ms": _worst(waits, arrivals, UPGRADE_S),
                f"{stream} death ms": _worst(waits, arrivals, DEATH_S),
            }
        told_s = n_nodes * N_SESSIONS * (TOLD + (1 - SILENT) / FINAL_S)
        row["told busy %"] = round(100 * told_s * costs["event told"], 1)
        rows.append(row)
    return rows


def _worst(waits: Times, arrivals: Times, begin_s: float) -> float:
    after = (arrivals >= begin_s) & (arrivals < begin_s + 5)
    return round(1000 * float(waits[after].max()), 1)


def main() -> None:
    """Print the table of the measurements in a file."""
    last = Path(sys.argv[1]).read_text().rstrip("\n").rpartition("\n")[2]
    measured: dict[str, Any] = json.loads(last)
    costs = {kind: each["NATS ms each"] / 1000 for kind, each in measured["ask"].items()}
    rows = simulated(costs, measured["hold"]["leases a second of silence"])
    print(table(list(rows[0]), [list(row.values()) for row in rows]))
    print(json.dumps({"measured": measured, "simulated": rows}))


if __name__ == "__main__":
    main()
