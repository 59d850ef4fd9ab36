"""From the configuration to the stations."""

import pytest

from streamd.config import load
from streamd.daemon import build


@pytest.mark.parametrize(
    "given",
    [
        {"pre-final-ms": "30000"},
        {"pre-final-ms": "400"},
        {"pre-final-ms": "0", "endpoint-ms": "0"},
        {"endpoint-empty-ms": "0"},
        {"max-utterance-ms": "1000", "step": "20", "length": "20", "keep": "0"},
    ],
)
def test_any_pauses_that_the_options_allow_make_a_session(given):
    assert build.session_factory(load(given, {}))().idle
