"""What is answered by plain HTTP on the websocket's port, once the door let the request in."""

from collections.abc import Callable, Mapping
from http import HTTPStatus

import msgspec

from streamd.server.door import METRICS_PATH, READY_PATH, SESSIONS_PATH, Answer
from streamd.server.metrics import Metrics
from streamd.server.streams import Streams

Route = Callable[[], Answer]


def routes(
    streams: Streams, metrics: Metrics, *, max_lag_ms: int, is_full: Callable[[], bool]
) -> Mapping[str, Route]:
    """What answers, by path; `is_full`: whether there is no room for another client."""

    def sessions() -> Answer:
        names = [{"name": name} for name in streams.names()]
        return _json(HTTPStatus.OK, {"sessions": names})

    def ready() -> Answer:
        reasons = [*streams.unready()]
        if (lag_ms := streams.lag_ms) > max_lag_ms:
            reasons.append(f"the engine is {lag_ms} ms behind")
        if is_full():
            reasons.append("no room for another client")
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        return _json(status, {"ready": not reasons, "reasons": reasons})

    def exposition() -> Answer:
        return Answer(HTTPStatus.OK, metrics.text(), {"Content-Type": metrics.content_type})

    return {SESSIONS_PATH: sessions, READY_PATH: ready, METRICS_PATH: exposition}


def _json(status: int, value: object) -> Answer:
    return Answer(status, msgspec.json.encode(value), {"Content-Type": "application/json"})
