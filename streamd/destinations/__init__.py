"""Where captions go besides this machine: streaming programs, services, players.

A destination turns events into parts, each of which it can send; `delivery` does the waiting, the
retrying and the counting. None of them can delay or end the captions.
"""

from streamd.destinations.addresses import opened as opened
from streamd.destinations.delivery import Delivery as Delivery
from streamd.destinations.delivery import Destination as Destination
