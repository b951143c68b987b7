"""Parcels of data for a machine without a network: what is unpacked is what was packed."""

import gzip
import re
import shutil

import numpy as np
import pytest

from posattn_jax.data.images import ImageSet, cifar
from posattn_jax.sweeps import parcel
from posattn_jax.sweeps.parcel import Parcel, pack, unpack
from posattn_jax.sweeps.slices import MIB, Sweep, read_list
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError
from tests.support.command import ROOT
from tests.support.packaging import requirements

SWEEPS = [
    Sweep("a", ("--config=a.py", "--config.data.dir=DATA/text")),
    Sweep("b", ("--config=b.py", "--config.data.dir=DATA/pairs/one.txt", "--config.data.validation_dir=DATA/text")),
    Sweep("c", ("--config=c.py", "--config.data.dir=DATA/missing", "--config.data.pool=2")),
]


@pytest.fixture(autouse=True)
def checked(monkeypatch):
    """The sweeps that were checked. Their configs are not there."""
    sweeps = []
    monkeypatch.setattr(parcel, "check", lambda own, *_: sweeps.extend(own))
    return sweeps


@pytest.fixture
def data(tmp_path):
    """Text that xz makes smaller, and what is as small as it gets."""
    for name, content in {
        "text/train.txt": b"the same line\n" * 5000,
        "text/below/dev.de.gz": gzip.compress(np.random.default_rng(0).bytes(90_000)),
        "text/empty.labels": b"",
        "pairs/one.txt": b"one" * 1000,
        "pairs/other.txt": b"not in the list",
    }.items():
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(content)
    return tmp_path / "data"


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def packed(data, tmp_path, most=MIB, sweeps=SWEEPS):
    own = Parcel(tmp_path / "parcel", most)
    lines = pack(sweeps, data, own)
    own.close()
    return own, lines


def test_files_come_out_as_they_were(data, tmp_path):
    own, lines = packed(data, tmp_path)
    assert lines == ["DATA/text: 0.1 MiB", "DATA/pairs/one.txt: 0.0 MiB", "DATA/missing: is not there, and left out"]
    assert own.sizes[0] < 100_000  # of 164,000 bytes
    for _ in range(2):
        assert unpack(tmp_path / "parcel", tmp_path / "there") == []
        expected = contents(data)
        del expected["pairs/other.txt"]
        assert contents(tmp_path / "there") == expected


def test_all_data_may_be_one_folder(data, tmp_path):
    _, lines = packed(data, tmp_path, sweeps=[Sweep("a", ("--config=a.py", "--config.data.dir=DATA/"))])
    assert lines == ["DATA/: 0.1 MiB"] and unpack(tmp_path / "parcel", tmp_path / "there") == []
    assert contents(tmp_path / "there") == contents(data)


def test_no_folder_is_too_large(data, tmp_path):
    own, _ = packed(data, tmp_path, most=90_100)
    sizes = [sum(map(len, contents(tmp_path / "parcel" / i / "data").values())) for i in "01"]
    assert sizes == own.sizes and max(sizes) <= 90_100
    shutil.rmtree(tmp_path / "parcel" / "0")
    assert unpack(tmp_path / "parcel", tmp_path / "there") == ["DATA/text: left out, 1 of its 3 pieces are there"]
    assert contents(tmp_path / "there").keys() == {"pairs/one.txt"}  # nothing in part
    with pytest.raises(InputError, match=r"dev.de.gz takes 0.1 MiB: .*--mib"):
        packed(data, tmp_path / "other", most=80_000)


def test_a_damaged_parcel_is_told(data, tmp_path):
    packed(data, tmp_path)
    path = tmp_path / "parcel" / "0" / "data" / "text" / "train.txt"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"0: data/text/train.txt has changed"):
        unpack(tmp_path / "parcel", tmp_path / "there")
    assert not (tmp_path / "there").exists()
    with pytest.raises(InputError, match=r"--parcel=.*data: .*pieces.json"):
        unpack(data, tmp_path / "there")
    (tmp_path / "parcel" / "0" / "SHA256SUMS").unlink()
    with pytest.raises(InputError, match=r"0: SHA256SUMS is missing: pack it again"):
        unpack(tmp_path / "parcel", tmp_path / "there")


@pytest.fixture
def images(tmp_path, monkeypatch):
    """Images of CIFAR-100, 1,100 and 10, where 50,000 are read; smooth, as photographs are, and with values that
    colour conversions would change.
    """
    monkeypatch.setattr(cifar, "NUM_IMAGES", {"train": 1100, "test": 10})
    rng = np.random.default_rng(3)
    for split, n in cifar.NUM_IMAGES.items():
        smooth = np.cumsum(rng.integers(-3, 4, (n, 32, 32, 3)), axis=2) + rng.integers(0, 256, (n, 1, 1, 3))
        labels = rng.integers(0, 100, n)
        for name, content in cifar.CIFAR100.binary_files(split, np.clip(smooth, 0, 255).astype(np.uint8), labels):
            path = tmp_path / "data" / "cifar" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return [Sweep("i", ("--config=i.py", "--config.data.dir=DATA/cifar"))]


def test_images_lose_nothing(images, tmp_path):
    (tmp_path / "data" / "cifar" / "train.labels").write_text("a file next to the set")
    own, _ = packed(tmp_path / "data", tmp_path, most=2 * MIB, sweeps=images)
    assert own.sizes[0] < 0.7 * 1110 * 3072
    assert unpack(tmp_path / "parcel", tmp_path / "there") == []
    assert contents(tmp_path / "there") == contents(tmp_path / "data")
    loaded: list[ImageSet] = [cifar.CIFAR100.load(tmp_path / each / "cifar", "train") for each in ("there", "data")]
    np.testing.assert_array_equal(*(each.images for each in loaded))
    np.testing.assert_array_equal(*(each.labels for each in loaded))


def test_images_of_which_some_are_missing_are_left_out(images, tmp_path):
    own, _ = packed(tmp_path / "data", tmp_path, most=MIB, sweeps=images)
    assert len(own.sizes) > 1
    shutil.rmtree(tmp_path / "parcel" / str(len(own.sizes) - 1))
    lines = unpack(tmp_path / "parcel", tmp_path / "there")
    assert len(lines) == 1 and re.fullmatch(r"DATA/cifar: left out, \d of its 6 pieces are there", lines[0])
    assert not (tmp_path / "there").exists()


def test_the_wheels_are_within_the_bounds_of_the_package():
    """And none of them is one that the other machine is said to have."""
    text = (ROOT / "launch" / "gpu_wheels.txt").read_text()
    pins = dict(re.findall(r"^([\w-]+)==([\d.]+)$", text, re.MULTILINE))
    there = set(re.findall(r"[\w-]+", " ".join(line for line in text.splitlines() if line.startswith("#"))))
    assert pins and not pins.keys() & there
    bounds = [bound for extra in requirements().values() for bound in extra if bound.name in pins]
    assert bounds and all(bound.specifier.contains(pins[bound.name]) for bound in bounds)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--out=parcel"], "expected --out=PARCEL LIST"),
        (["--out=parcel", "missing"], "missing: cannot be read"),
        (["--out=.", "list"], "--out=."),
        (["--out=list", "list"], "--out=list"),
        (["--out=parcel", "--mib=nan", "list"], "--mib=nan"),
        (["--out=parcel", "--data=nowhere", "list"], "--data=nowhere: no such folder"),
        (["--out=parcel", "--unpack=list", "list"], "--unpack: expected no LIST next to it"),
        (["--out=parcel", "--wheels=", "--mib=.01", "--data=data", "list"], "dev.de.gz takes 0.1 MiB"),
    ],
)
def test_commands_that_cannot_be_run(data, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list").write_text("--workdir=a --config=a.py --config.data.dir=DATA/text\n")
    assert read_list(tmp_path / "list")
    with pytest.raises(InputError, match=message):
        parcel.main(["parcel", *arguments])
    assert not (tmp_path / "parcel").exists()  # nothing half


def test_a_file_that_the_system_refuses_is_one_line(data, tmp_path, capsys):
    (tmp_path / "list").write_text("--workdir=a --config=a.py --config.data.dir=DATA/text\n")
    out = tmp_path / "list" / "parcel"  # below a file
    arguments = ["", f"--out={out}", f"--data={data}", "--wheels=", str(tmp_path / "list")]
    assert command_line.run(parcel.main, arguments) == 1
    assert re.fullmatch(r"posattn_jax: error: .*list/parcel.*: Not a directory\n", capsys.readouterr().err)


def test_the_command_checks_packs_and_unpacks(data, checked, tmp_path, capsys):
    (tmp_path / "list").write_text("--workdir=a --config=a.py --config.data.dir=DATA/text\n")
    assert parcel.main(["", f"--out={tmp_path / 'p'}", f"--data={data}", "--wheels=", str(tmp_path / "list")]) == 0
    assert capsys.readouterr().out == f"DATA/text: 0.1 MiB\n{tmp_path / 'p' / '0'}: 0.1 MiB\n"
    assert parcel.main(["", f"--out={tmp_path / 'there'}", f"--unpack={tmp_path / 'p'}"]) == 0
    assert (tmp_path / "there" / "text" / "train.txt").read_bytes() == (data / "text" / "train.txt").read_bytes()
    assert checked == [Sweep("a", ("--config=a.py", "--config.data.dir=DATA/text"))]
