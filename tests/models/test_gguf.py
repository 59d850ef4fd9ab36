"""What a GGUF file says of its model, and what is said of those that are damaged or no speech."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.errors import ModelError
from streamd.models.formats.gguf import GgufHeader, read_header, speech_family
from streamd.models.store import is_family
from streamd.models.store.cache import places
from tests.support import gguf_models


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return gguf_models.moonshine().write(tmp_path_factory.mktemp("gguf") / "small.gguf")


def test_the_header_tells_family_languages_licence_and_streaming(small):
    name = "moonshine-streaming-tiny"
    assert read_header(small) == GgufHeader("moonshine_streaming", name, ("en",), "mit", True)
    assert is_family(str(small), places())
    assert not is_family("tiny.en", places())


def test_a_model_of_text_is_refused_by_its_architecture(tmp_path):
    model = gguf_models.moonshine()
    model.family = "llama"
    path = model.write(tmp_path / "x.gguf")
    with pytest.raises(ModelError, match="architecture llama, which is no model of speech"):
        is_family(str(path), places())


@given(st.data())
def test_a_damaged_header_is_one_line_or_another_header(small, tmp_path_factory, data):
    content = bytearray(small.read_bytes()[:4000])
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, 1500))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(0, len(content))) :]
    path = tmp_path_factory.mktemp("damaged") / "x.gguf"
    path.write_bytes(content)
    said = ""
    try:
        speech_family(path)
    except ModelError as error:
        said = str(error)
    assert said == "" or said.startswith(f"{path}: ")
    assert "\n" not in said
