"""The protocols that clients speak on the port.

A dialect is pure: `Connection` does what it says. A new one is a file here and an entry in
`DIALECTS`.
"""

from streamd.server.dialects.dialect import Close, Dialect, Tell
from streamd.server.dialects.paths import DIALECTS, ROOT_PATH, introduced, requested

__all__ = ["DIALECTS", "ROOT_PATH", "Close", "Dialect", "Tell", "introduced", "requested"]
