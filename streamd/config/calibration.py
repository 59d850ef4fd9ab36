"""The options of ``calibrate``; see `schema`."""

from typing import Annotated

from streamd.config.group import Group
from streamd.config.option import Opt


class Calibration(Group, frozen=True, kw_only=True):
    """What becomes of the context that was found."""

    dry_run: Annotated[bool, Opt("only tell: write nothing into the file of --config")] = False
