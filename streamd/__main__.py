"""``python -m streamd`` is the command ``streamd``."""

import sys

from streamd.cli import main

if __name__ == "__main__":
    sys.exit(main())
