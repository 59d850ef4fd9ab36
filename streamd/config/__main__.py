"""``python -m streamd.config > docs/options.md``."""

import sys

from streamd.config.reference import reference

sys.stdout.write(reference())
