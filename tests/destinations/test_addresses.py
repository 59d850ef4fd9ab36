"""What --to names is told apart, and refused in words that have no key."""

import pytest

from streamd.config import as_toml, load
from streamd.destinations import opened
from streamd.errors import ConfigError
from streamd.options import CueLayout


@pytest.mark.parametrize(
    ("to", "name"),
    [
        ("obs", "OBS (127.0.0.1:4455)"),
        ("obs:studio:4444", "OBS (studio:4444)"),
        ("youtube:https://upload.example/closedcaption?cid=k3y", "YouTube (upload.example)"),
        ("zoom:https://wmcc.example/closedcaption?id=k3y", "Zoom (wmcc.example)"),
        ("webhook:https://me:k3y@hooks.example:8443/k3y", "webhook (hooks.example)"),
    ],
)
async def test_messages_name_a_destination_without_its_key(to, name):
    destination = opened(to, CueLayout(), {}, {"STREAMD_WEBHOOK_SECRET": "k3y" * 10})()
    assert destination.name == name
    await destination.close()


async def test_a_folder_for_players_is_made(tmp_path):
    opened(f"hls:{tmp_path / 'new' / 'live'}", CueLayout(), {})
    assert (tmp_path / "new" / "live").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--to hls: .*file cannot be made"):
        opened(f"hls:{tmp_path / 'file'}", CueLayout(), {})


@pytest.mark.parametrize("address", ["https://:443/k3y", "https://a b/k3y", "https://h:99999/k3y"])
def test_an_address_that_is_none_is_refused_without_its_key(address):
    with pytest.raises(ConfigError, match="--to zoom: the address") as refusal:
        opened(f"zoom:{address}", CueLayout(), {})
    assert "k3y" not in str(refusal.value)


@pytest.mark.parametrize("to", ["twitch:https://x", "youtube", "youtube:ftp://x", "hls:"])
def test_other_destinations_are_refused(to):
    with pytest.raises(ConfigError, match="obs, obs:HOST:PORT, youtube:URL"):
        load({"to": [to]}, {})


def test_no_key_is_printed():
    urls = ["youtube:https://a.example/closedcaption?cid=k3y", "webhook:https://me:k3y@h/k3y"]
    config = load({"to": urls}, {})
    assert config.output.to == tuple(urls)
    printed = as_toml(config)
    assert 'to = ["youtube:https://a.example/***","webhook:https://h/***"]' in printed
    assert "k3y" not in printed
