"""``python -m streamd.sinks json > docs/json.schema.json``."""

import json
import sys

from streamd.sinks.documents import schema

sys.stdout.write(json.dumps(schema(sys.argv[1]), indent=2) + "\n")
