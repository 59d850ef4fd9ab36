"""Make this folder's files: ``python models/smart-turn/make.py WHEEL``, a wheel of pipecat-ai."""

import hashlib
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
INSIDE = "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx"
SHA256 = "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f"


def main() -> None:
    """Copy the weights and the licence, unless they are others."""
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        weights = wheel.read(INSIDE)
        (licence,) = [name for name in wheel.namelist() if name.endswith("licenses/LICENSE")]
        text = wheel.read(licence)
    if hashlib.sha256(weights).hexdigest() != SHA256:
        raise SystemExit(f"{sys.argv[1]}: not the weights of smart-turn v3.2")
    (HERE / "smart-turn-v3.2.onnx").write_bytes(weights)
    (HERE / "LICENSE").write_bytes(text)


if __name__ == "__main__":
    main()
