"""A run goes on with the data that it began with, or says which file has changed."""

import json

import pytest

from posattn_jax.data.pipeline import checksums
from posattn_jax.system.errors import InputError
from tests.drills.damages import flip_a_bit


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "data"
    for name in ("train.tsv", "more/test.tsv"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"what is in {name}")
    return checksums.below(folder, sorted(path for path in folder.rglob("*") if path.is_file()))


def test_a_file_that_has_changed_is_refused(tmp_path, files, caplog):
    run = tmp_path / "run"
    checksums.check(files, run)
    checksums.save(files, run)
    checksums.check(files, run)
    assert set(json.loads((run / checksums.FILE).read_text())) == {"data.dir/train.tsv", "data.dir/more/test.tsv"}
    flip_a_bit(files["data.dir/train.tsv"])
    message = rf"{tmp_path}/data/train.tsv has changed, or is damaged, since the run in {run} began: its SHA-256 is"
    with pytest.raises(InputError, match=message) as caught:
        checksums.check(files, run)
    assert len(str(caught.value).splitlines()) == 1 and not caplog.text
    checksums.check(files, run, evaluates=True)
    assert "train.tsv has changed, or is damaged" in caplog.text
    checksums.save(files, run)
    with pytest.raises(InputError, match=message):
        checksums.check(files, run)


def test_data_may_move(tmp_path, files):
    checksums.save(files, tmp_path / "run")
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    elsewhere = tmp_path / "elsewhere"
    moved = checksums.below(elsewhere, [elsewhere / "train.tsv", elsewhere / "more" / "test.tsv"])
    checksums.check(moved, tmp_path / "run")
    del moved["data.dir/more/test.tsv"]
    with pytest.raises(InputError, match="^data.dir/more/test.tsv, .*not there"):
        checksums.check(moved, tmp_path / "run")
    checksums.check(moved, tmp_path / "run", evaluates=True)


def test_one_sum_of_all_files(tmp_path, files):
    first, same, other = (tmp_path / name for name in ("first", "same", "other"))
    assert checksums.of_run(first) is None
    checksums.save(files, first)
    checksums.save(dict(reversed(files.items())), same)
    flip_a_bit(files["data.dir/train.tsv"])
    checksums.save(files, other)
    assert len(checksums.of_run(first)) == 64
    assert checksums.of_run(first) == checksums.of_run(same) != checksums.of_run(other)


def test_another_file_is_told(tmp_path, files, caplog):
    run, more = tmp_path / "run", tmp_path / "data" / "test_2.tsv"
    checksums.save(files, run)
    more.write_text("what comes later")
    now = {**files, "data.dir/test_2.tsv": more}
    checksums.check(now, run)
    assert f"{more} was not read" in caplog.text
    checksums.save(now, run)
    flip_a_bit(more)
    with pytest.raises(InputError, match="test_2.tsv has changed"):
        checksums.check(now, run)


def test_another_file_to_train_on_is_refused(tmp_path, files):
    """With one example more, the seed draws others for validation, which were trained on before."""
    run, more = tmp_path / "run", tmp_path / "data" / "val.tsv"
    checksums.save(files, run)
    more.write_text("what comes later")
    now = {**files, "data.dir/val.tsv": more}
    with pytest.raises(InputError, match=f"^{more} was not there when the run in {run} began: move it away, or delete"):
        checksums.check(now, run)
    checksums.check(now, run, evaluates=True)


def test_what_cannot_be_read_is_named(tmp_path, files):
    checksums.save(files, tmp_path)
    (tmp_path / checksums.FILE).write_text('{"data.dir')
    with pytest.raises(InputError, match=f"{checksums.FILE}: cannot be read .*delete it"):
        checksums.check(files, tmp_path)
