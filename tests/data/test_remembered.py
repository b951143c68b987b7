"""A run goes on with the data that it began with, or says which file has changed."""

import json

import pytest

from posattn_jax.data import remembered
from posattn_jax.system.errors import InputError
from tests.drills.damages import flip_a_bit


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "data"
    for name in ("train.tsv", "more/test.tsv"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"what is in {name}")
    return remembered.below(folder, sorted(path for path in folder.rglob("*") if path.is_file()))


def test_a_file_that_has_changed_is_refused(tmp_path, files, caplog):
    run = tmp_path / "run"
    remembered.check(files, run)
    remembered.save(files, run)
    remembered.check(files, run)
    assert set(json.loads((run / remembered.FILE).read_text())) == {"data.dir/train.tsv", "data.dir/more/test.tsv"}
    flip_a_bit(files["data.dir/train.tsv"])
    message = rf"{tmp_path}/data/train.tsv has changed, or is damaged, since the run in {run} began: its SHA-256 is"
    with pytest.raises(InputError, match=message) as caught:
        remembered.check(files, run)
    assert len(str(caught.value).splitlines()) == 1 and not caplog.text
    remembered.check(files, run, evaluates=True)
    assert "train.tsv has changed, or is damaged" in caplog.text
    remembered.save(files, run)
    with pytest.raises(InputError, match=message):
        remembered.check(files, run)


def test_data_may_move(tmp_path, files):
    remembered.save(files, tmp_path / "run")
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    elsewhere = tmp_path / "elsewhere"
    moved = remembered.below(elsewhere, [elsewhere / "train.tsv", elsewhere / "more" / "test.tsv"])
    remembered.check(moved, tmp_path / "run")
    del moved["data.dir/more/test.tsv"]
    with pytest.raises(
        InputError, match="^data.dir/more/test.tsv, which the run in .* began with, is not there: put it"
    ):
        remembered.check(moved, tmp_path / "run")
    remembered.check(moved, tmp_path / "run", evaluates=True)


def test_another_file_is_told(tmp_path, files, caplog):
    run, more = tmp_path / "run", tmp_path / "data" / "more.tsv"
    remembered.save(files, run)
    more.write_text("what comes later")
    now = {**files, "data.dir/more.tsv": more}
    remembered.check(now, run)
    assert f"{more} was not read when this run began: it is not verified" in caplog.text
    remembered.save(now, run)
    flip_a_bit(more)
    with pytest.raises(InputError, match="more.tsv has changed"):
        remembered.check(now, run)


def test_what_cannot_be_read_is_named(tmp_path, files):
    remembered.save(files, tmp_path)
    (tmp_path / remembered.FILE).write_text('{"data.dir')
    with pytest.raises(InputError, match=f"{remembered.FILE}: cannot be read .*delete it, and the data is not verif"):
        remembered.check(files, tmp_path)
