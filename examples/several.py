"""Caption several recordings at a time in asyncio: python several.py talk.wav other.wav."""

import asyncio
import sys

from streamd import Captioner


async def caption(captions: Captioner, path: str) -> None:
    """Print the finals of one recording."""
    async for event in captions.listen(path):
        if event.is_final:
            print(f"{path}: {event.text}")


async def main(paths: list[str]) -> None:
    """Open the model once; every session takes its turn on it."""
    async with Captioner(options={"decoding.workers": 2}) as captions, asyncio.TaskGroup() as tasks:
        for path in paths:
            tasks.create_task(caption(captions, path))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
