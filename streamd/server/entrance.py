"""Where clients come in, and what they have to show."""

import ssl
from dataclasses import dataclass
from socket import socket

from streamd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Entrance:
    """The address to listen on, and who is let in there.

    `port` 0 takes a free one; `listening`: a bound socket that is taken instead of both. `token`:
    what clients must show; without it only this machine is let in. `hosts`: further names of this
    machine; `origins`: further pages that may connect, as ``https://HOST[:PORT]``. `cert`, `key`:
    PEM files for TLS; without `cert` there is none.
    """

    host: str = "127.0.0.1"
    port: int = 0
    listening: socket | None = None
    token: str | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    cert: str = ""
    key: str = ""

    def tls(self) -> ssl.SSLContext | None:
        """What TLS connections are made with, if there are any.

        Raises
        ------
        ConfigError : the files cannot be read, or do not belong together
        """
        if not self.cert:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.load_certificate(context)
        return context

    def load_certificate(self, context: ssl.SSLContext) -> None:
        """Read the files anew, for the connections to come; raises as `tls` does."""
        try:
            context.load_cert_chain(self.cert, self.key or None)
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror or error
            raise ConfigError(
                f"--tls-cert {self.cert}, --tls-key {self.key}: cannot be used: {reason}"
            ) from None
