"""Packs what a machine without a network needs for a list of sweeps, as small files: see `launch/gpu_parcel.sh`.

  launch/gpu_parcel.sh --out=PARCEL [--data=FOLDER] [--mib=60] LIST
  launch/gpu_slice.sh --parcel=PARCEL --minutes=11 --out=OUT LIST      there

LIST is that of `launch/gpu_slice.sh`, whose values that begin with DATA/ are below the folder of --data. If one of its
sweeps could not start (`launch/gpu_slice.sh --check LIST`), nothing is packed. PARCEL gets
folders 0, 1, ... of at most --mib each, in the order of the list: the wheels of launch/gpu_wheels.txt (for --python, on
Linux with x86-64; --wheels='' packs none), and the data. CIFAR's images become lossless WebP, of about .55 of their
size. All other files are compressed by xz where that makes them smaller. The second command takes those folders that
are there, and unpacks the data whose pieces it has all of; it says what it leaves out.
Exit codes: 0 done, 1 failed while running, 2 wrong input, 130 stopped by Ctrl-C.
"""

import argparse
import dataclasses
import io
import json
import lzma
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image

from posattn_jax.data.images import cifar
from posattn_jax.sweeps.slices import DATA, MIB, RESULTS, WORK, Sweep, check, read_list
from posattn_jax.system import checksums, command_line
from posattn_jax.system.errors import InputError, RunError
from posattn_jax.system.files import files_below, write_atomically, write_json

IMAGES_A_FILE = 500
INDEX = "pieces.json"  # in each folder, of all folders: name of the data -> piece -> one of:
AS_IS, XZ, IMAGES, LABELS = "as it is", "xz", "images of CIFAR", "labels of CIFAR"
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (34, 28, 27, 24, 17)] + ["manylinux2014_x86_64"]


@dataclasses.dataclass
class Parcel:
    """Folders 0, 1, ... of at most `most` bytes, which are filled one after the other.

    Attributes:
      out: the folder of these folders.
      most: the largest size of each, without its checksums and its list of pieces.
      sizes: the size of each that has something.
      index: of each name of data its pieces, and how each is read.
    """

    out: pathlib.Path
    most: int
    sizes: list[int] = dataclasses.field(default_factory=lambda: [0])
    index: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)

    def add(self, name: str, content: bytes) -> None:
        """Writes a file. Raises InputError if it is larger than a folder may be."""
        if len(content) > self.most:
            raise InputError(f"{name} takes {len(content) / MIB:.1f} MiB: expected a larger --mib, or smaller files")
        if self.sizes[-1] + len(content) > self.most:
            self.sizes.append(0)
        self.sizes[-1] += len(content)
        path = self.out / str(len(self.sizes) - 1) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def close(self) -> None:
        """Writes the list of pieces, and the checksums, of each folder."""
        for number in range(len(self.sizes)):
            write_json(self.out / str(number) / INDEX, self.index)
            checksums.write(self.out / str(number))


def data_of(sweeps: Sequence[Sweep]) -> list[str]:
    """The folders and files that a list names below DATA/, in its order, each once."""
    values = (option.partition("=")[2] for sweep in sweeps for option in sweep.options)
    return list(dict.fromkeys(value.removeprefix(DATA) for value in values if value.startswith(DATA)))


def pack(sweeps: Sequence[Sweep], data: pathlib.Path | None, parcel: Parcel) -> list[str]:
    """Packs the data of some sweeps; returns a line for each. What is not there is told, and left out.

    Raises:
      InputError: a file is too large, or cannot be read.
    """
    lines = []
    for name in data_of(sweeps):
        place = None if data is None else data / name
        if place is None or not place.exists():
            lines.append(f"{DATA}{name}: is not there, and left out")
            continue
        before = sum(parcel.sizes)
        for piece, how, content in _pieces(place, name):
            parcel.add(f"data/{piece}", content)
            parcel.index.setdefault(name, {})[piece] = how
        lines.append(f"{DATA}{name}: {(sum(parcel.sizes) - before) / MIB:.1f} MiB")
    return lines


def _pieces(place: pathlib.Path, name: str) -> Iterator[tuple[str, str, bytes]]:
    """The small files that a folder or a file becomes: their names, how they are read, and their content."""
    of_sets = set[pathlib.Path]()
    for key, record in cifar.SETS.items() if place.is_dir() else ():
        files = [path for split in cifar.NUM_IMAGES for path in record.files(place, split)]
        if files:
            of_sets.update(files)
            yield from _of_images(record, place, (pathlib.PurePosixPath(name) / key).as_posix())
    paths, wrong = files_below(place) if place.is_dir() else ([place], [])
    if wrong:
        raise wrong[0]
    for path in paths:
        if path not in of_sets:
            content = path.read_bytes()
            small = lzma.compress(content)
            piece = name if path == place else (pathlib.PurePosixPath(name) / path.relative_to(place)).as_posix()
            yield (piece, XZ, small) if len(small) < len(content) else (piece, AS_IS, content)


def _of_images(record: cifar.Cifar, folder: pathlib.Path, name: str) -> Iterator[tuple[str, str, bytes]]:
    for split in cifar.NUM_IMAGES:
        found = record.load(folder, split)
        yield f"{name}_{split}/labels", LABELS, lzma.compress(found.labels.astype(np.uint8).tobytes())
        for start in range(0, len(found.images), IMAGES_A_FILE):
            column = found.images[start : start + IMAGES_A_FILE].reshape(-1, *found.images.shape[2:])
            buffer = io.BytesIO()
            Image.fromarray(column).save(buffer, "WEBP", lossless=True, quality=75, method=4, exact=True)
            yield f"{name}_{split}/{start:05d}", IMAGES, buffer.getvalue()


def unpack(parcel: pathlib.Path, target: pathlib.Path) -> list[str]:
    """Unpacks the data of those folders of a parcel that are there; returns a line for what is left out.

    Raises:
      InputError: there is no such folder, or a file of it is damaged.
    """
    folders = sorted(path.parent for path in parcel.glob(f"*/{INDEX}"))
    if not folders:
        raise InputError(f"--parcel={parcel}: expected a folder of launch/gpu_parcel.sh, with 0/{INDEX}")
    for folder in folders:
        try:
            damage = checksums.damage(folder)
        except FileNotFoundError:
            damage = f"{checksums.FILE} is missing"
        if damage:
            raise InputError(f"{folder}: {damage}: pack it again")
    index = json.loads((folders[0] / INDEX).read_text(encoding="utf-8"))
    lines = []
    for name, pieces in index.items():
        places = ((piece, folder / "data" / piece) for piece in pieces for folder in folders)
        there = {piece: path for piece, path in places if path.is_file()}
        if len(there) < len(pieces):
            lines.append(f"{DATA}{name}: left out, {len(there):,} of its {len(pieces):,} pieces are there")
            continue
        for piece, path in there.items():
            if pieces[piece] == LABELS:
                folder = pathlib.PurePath(piece).parent
                split = [each for each in sorted(there) if pathlib.PurePath(each).parent == folder]
                images = [there[each] for each in split if pieces[each] == IMAGES]
                _put_images(target / piece, lzma.decompress(path.read_bytes()), images)
            elif pieces[piece] != IMAGES:
                content = path.read_bytes()
                _put(target / piece, lzma.decompress(content) if pieces[piece] == XZ else content)
    return lines


def _put_images(place: pathlib.Path, labels: bytes, paths: Sequence[pathlib.Path]) -> None:
    """Writes the binary version of a split, whose images are in files [500 32 32 3]."""
    key, _, split = place.parent.name.rpartition("_")
    images = np.concatenate([np.asarray(Image.open(path).convert("RGB")).reshape(-1, 32, 32, 3) for path in paths])
    for name, content in cifar.SETS[key].binary_files(split, images, np.frombuffer(labels, np.uint8)):
        _put(place.parents[1] / name, content)


def _put(path: pathlib.Path, content: bytes) -> None:
    write_atomically(path, lambda file: file.write(content))


def fetch_wheels(requirements: pathlib.Path, python: str, parcel: Parcel) -> str:
    """Packs the wheels of a list of requirements; returns a line. Raises RunError if pip cannot get one."""
    with tempfile.TemporaryDirectory() as temporary:
        of_the_machine = [f"--python-version={python}", "--implementation=cp", *(f"--platform={p}" for p in PLATFORMS)]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", *of_the_machine, f"--dest={temporary}", f"--requirement={requirements}"]
        if subprocess.run(command).returncode:
            raise RunError(f"{requirements}: pip could not get these wheels")
        wheels = sorted(pathlib.Path(temporary).iterdir())
        for wheel in wheels:
            parcel.add(f"wheels/{wheel.name}", wheel.read_bytes())
    return f"{len(wheels)} wheels: {sum(parcel.sizes) / MIB:.1f} MiB"


def main(argv: list[str]) -> int:
    """Parses the command line, and packs or unpacks; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", nargs="?", type=pathlib.Path, metavar="LIST", help="sweeps, one in a line")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the parcel; or where the data are unpacked")
    parser.add_argument("--data", type=pathlib.Path, help="the folder that DATA/ stands for in the list")
    parser.add_argument("--mib", type=float, default=60, help="largest size of each folder of the parcel")
    parser.add_argument("--python", default="3.12", help="the Python of the other machine")
    parser.add_argument("--wheels", default="launch/gpu_wheels.txt", help="what it lacks; empty: nothing")
    parser.add_argument("--unpack", type=pathlib.Path, metavar="PARCEL", help="unpack its data into --out instead")
    options = parser.parse_args(argv[1:])
    if options.unpack is not None:
        if options.list is not None:
            raise InputError("--unpack: expected no LIST next to it")
        for line in unpack(options.unpack, options.out):
            print(line)
        return 0
    if options.list is None:
        raise InputError("expected --out=PARCEL LIST, or --unpack=PARCEL --out=FOLDER")
    if options.out.exists() and not (options.out.is_dir() and not any(options.out.iterdir())):
        raise InputError(f"--out={options.out}: expected an empty folder, or none")
    if not (math.isfinite(options.mib) and options.mib > 0):
        raise InputError(f"--mib={options.mib:g}: expected a number above 0")
    if options.data is not None and not options.data.is_dir():
        raise InputError(f"--data={options.data}: no such folder")
    sweeps = read_list(options.list)
    check(sweeps, WORK, RESULTS)
    parcel, lines = Parcel(options.out, int(options.mib * MIB)), []
    try:
        if options.wheels:
            lines.append(fetch_wheels(pathlib.Path(options.wheels), options.python, parcel))
        lines += pack(sweeps, options.data, parcel)
    except BaseException:
        shutil.rmtree(options.out, ignore_errors=True)
        raise
    parcel.close()
    lines += [f"{options.out / str(i)}: {size / MIB:.1f} MiB" for i, size in enumerate(parcel.sizes)]
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv))
