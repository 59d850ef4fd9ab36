"""Responses to HTTP requests that do not become a websocket."""

from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus

import msgspec
from websockets.datastructures import Headers
from websockets.http11 import Response


def respond(status: int, body: bytes, headers: Mapping[str, str]) -> Response:
    """Return a response to a request that does not become a websocket."""
    connection = {"Date": formatdate(usegmt=True), "Connection": "close"}
    every = {**connection, "Content-Length": str(len(body)), **headers}
    return Response(status, HTTPStatus(status).phrase, Headers(every), body)


def plain(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response of one line of text."""
    kind = {"Content-Type": "text/plain; charset=utf-8"}
    return respond(status, f"{text}\n".encode(), {**kind, **(headers or {})})


def in_json(status: int, value: object, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response in JSON."""
    kind = {"Content-Type": "application/json"}
    return respond(status, msgspec.json.encode(value), {**kind, **(headers or {})})
