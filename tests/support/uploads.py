"""Recordings that are sent with POST."""

import asyncio

PATH = "/v1/audio/transcriptions"


def form(*fields: tuple[str, str], file: bytes | None = b"one\ntwo", name: str = "a.wav") -> bytes:
    parts = [f'form-data; name="{key}"\r\n\r\n{value}'.encode() for key, value in fields]
    if file is not None:
        head = f'form-data; name="file"; filename="{name}"\r\nContent-Type: audio/wav\r\n\r\n'
        parts.append(head.encode() + file)
    whole = b"".join(b"--x\r\nContent-Disposition: " + part + b"\r\n" for part in parts)
    return whole + b"--x--\r\n"


def head(n_bytes: int | None, *headers: str, path: str = PATH, method: str = "POST") -> bytes:
    rows = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    rows.append("Content-Type: multipart/form-data; boundary=x")
    if n_bytes is not None:
        rows.append(f"Content-Length: {n_bytes}")
    return "\r\n".join((*rows, "", "")).encode()


async def answer(reader: asyncio.StreamReader) -> tuple[int, str, bytes]:
    first, _, headers = (await reader.readuntil(b"\r\n\r\n")).decode().partition("\r\n")
    return int(first.split()[1]), headers, await reader.read()


async def post(port: int, body: bytes, *headers: str, **where: str) -> tuple[int, str, bytes]:
    return await exchange(port, head(len(body), *headers, **where) + body)


async def exchange(port: int, request: bytes) -> tuple[int, str, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await answer(reader)
    finally:
        writer.close()
