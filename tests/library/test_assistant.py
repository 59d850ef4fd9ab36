"""An assistant reads the library through the SDK's own client."""

import sys

import pytest

from tests.library.test_rest import TALK
from tests.library.test_shelf import fill, give_name


@pytest.mark.filterwarnings("ignore")  # of the SDK's
async def test_an_assistant_searches_reads_and_asks_what_was_said_just_now(tmp_path):
    mcp = pytest.importorskip("mcp", reason="needs the extra mcp")  # takes a CPU second
    give_name(fill(tmp_path, {"talk": TALK}), 1, 2, "Zoë")
    command = [sys.executable, "-m", "streamd", "mcp", "--keep", str(tmp_path)]
    program = mcp.StdioServerParameters(command=command[0], args=command[1:])
    async with mcp.stdio_client(program) as pipes, mcp.ClientSession(*pipes) as client:
        await client.initialize()
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["search", "read", "now"]
        assert all(tool.annotations.read_only_hint for tool in tools)

        async def ask(tool, **given):
            answer = await client.call_tool(tool, given)
            return answer.is_error, answer.content[0].text

        _, found = await ask("search", query="cafe speaker:zoe")
        assert found.endswith("0:00:01: Zoë: Then came the café.")
        _, read = await ask("read", session="talk")
        assert read.splitlines()[1:] == [
            "0:00:00 Speaker 1: " + TALK[0][0],
            "0:00:01 Zoë: " + TALK[1][0],
        ]
        assert (await ask("read", session=1))[1] == read  # as `search` writes it
        _, late = await ask("read", session="1", from_s=1, to_s=2)
        assert len(late.splitlines()) == 3
        assert "Zoë: Then came the café." in (await ask("now", minutes=1))[1]
        failed, why = await ask("read", session="lost")
        assert (failed, "the library has no session lost" in why) == (True, True)
