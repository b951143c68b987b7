"""What the project keeps of data: verified whenever it is read, and made anew where it is damaged."""

import numpy as np
import pytest

from posattn_jax.data.text import corpus, text_files
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.system import checksums
from posattn_jax.system.checksums import keep_folder
from tests.drills.damages import DAMAGES, flip_a_bit
from tests.support.made_text import write_text


@pytest.fixture
def made():
    """The names of the folders that were made."""
    return []


@pytest.fixture
def make(made):
    def make(path):
        made.append(path.name)
        (path / "a.bin").write_bytes(bytes(range(200)))
        (path / "b.bin").write_bytes(bytes(100))

    return make


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", ["a.bin", checksums.FILE])
def test_a_damaged_folder_is_made_anew(tmp_path, caplog, made, make, damage, name):
    path = tmp_path / "cache" / "corpus"
    keep_folder(path, make)
    keep_folder(path, make)
    assert len(made) == 1 and not caplog.text
    damage(path / name)
    keep_folder(path, make)
    assert len(made) == 2 and f"{path}: " in caplog.text and "it is made anew" in caplog.text
    assert (path / "a.bin").read_bytes() == bytes(range(200)) and checksums.damage(path) is None
    assert [each.name for each in path.parent.iterdir()] == ["corpus"], "nothing is left over"


def test_one_that_is_not_finished_is_not_there(tmp_path):
    def fail(path):
        (path / "a.bin").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep_folder(tmp_path / "corpus", fail)
    assert not list(tmp_path.iterdir())


def test_of_text(tmp_path, caplog):
    """A flipped bit would be another token, or another subword."""
    files = sorted(write_text(tmp_path / "text").iterdir())
    cache = tmp_path / "cache"
    subwords = tokenizer.of_text(text_files.lines(files), files, 50, cache)
    pairs = corpus.of_text(files, subwords, 16, cache)
    expected = pairs.batch(np.arange(9))["tokens"]
    (ids,), (model,) = cache.glob("corpus-*/ids.bin"), cache.glob("tokenizer-*.model")
    flip_a_bit(ids)
    flip_a_bit(model)
    again = tokenizer.of_text(text_files.lines(files), files, 50, cache)
    assert again.sha256 == subwords.sha256 and f"{model}: has changed since it was saved" in caplog.text
    np.testing.assert_array_equal(corpus.of_text(files, again, 16, cache).batch(np.arange(9))["tokens"], expected)
    assert "ids.bin has changed" in caplog.text
