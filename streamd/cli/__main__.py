"""``python -m streamd.cli``: the program, for where its script is not on the path."""

import sys

from streamd.cli import main

sys.exit(main())
