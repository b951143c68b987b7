"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), from their official archives or folders, binary or python version."""

import dataclasses
import io
import pathlib
import pickle
import tarfile
import zlib
from collections.abc import Collection, Iterator

import numpy as np

from posattn_jax.data.images import ImageRecord, ImageSet, Split
from posattn_jax.data.official.files import fetch, tell_if_not_official
from posattn_jax.system.errors import InputError

URL = "https://www.cs.toronto.edu/~kriz/"
NUM_IMAGES: dict[Split, int] = {"train": 50_000, "test": 10_000}
NUM_PIXELS = 3 * 32 * 32
MOST_BYTES = 200_000_000  # the most bytes of a file in an archive; the largest official one has 156 million
# CIFAR-100's fine labels, in the order of their numbers
FINE = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""


@dataclasses.dataclass(frozen=True)
class Version:
    """One published form of a set: an archive, the folder in it, and the files of each split in that folder.

    The MD5 of a file is None if none is published.
    """

    archive: str
    md5: str
    folder: str
    files: dict[str, dict[str, str | None]]


@dataclasses.dataclass(frozen=True)
class Cifar(ImageRecord):
    """One of the sets, read from its official archive, from the unpacked folder, or from the files of that folder.

    Attributes:
      title: the name of the set.
      names: the names of the labels, in order.
      label_bytes: the number of bytes before the pixels of a binary record. The last of them is the label.
      label_key: the key of the labels in the python version.
      binary, python: the two versions.
    """

    title: str
    names: tuple[str, ...]
    label_bytes: int
    label_key: bytes
    binary: Version
    python: Version
    sides: tuple[int, ...] = (32, 32)
    channels: int = 3

    def load(self, folder: pathlib.Path, split: Split, download: bool = False) -> ImageSet:
        """See `ImageRecord`. `download` fetches the binary archive."""
        found = self._find(folder, split)
        if found is None and download:
            fetch(URL + self.binary.archive, f"md5:{self.binary.md5}", folder)
            found = self._find(folder, split)
        if found is None:
            binary, python = self.binary, self.python
            raise InputError(
                f"{self.title} not found in data.dir={folder}: expected {binary.archive}, {python.archive} or an "
                f"unpacked {binary.folder} or {python.folder} there; get it from {URL}{binary.archive}, or "
                "with --config.data.download=True"
            )
        version, place = found
        files = version.files[split]
        if place.is_file():
            tell_if_not_official(place, version.md5)
            contents = _read_members(place, [f"{version.folder}/{name}" for name in files])
        else:
            contents = [self._read_file(place / name, md5) for name, md5 in files.items()]
        each = NUM_IMAGES[split] // len(files)
        images, labels = np.empty((len(files), each, NUM_PIXELS // 3, 3), np.uint8), []
        for interleaved, name, content in zip(images, files, contents, strict=True):
            decode = self._decode_binary if version is self.binary else self._decode_pickle
            try:
                file_images, file_labels = decode(content, each)
            except ValueError as error:
                raise InputError(f"{name} in {folder} {error}: get the {self.title} archive again") from error
            if len(wrong := file_labels[(file_labels < 0) | (file_labels >= len(self.names))]):
                most = len(self.names) - 1
                label = f"has a label {wrong[0]}, expected 0 to {most}"
                raise InputError(f"{name} in {folder} {label}: get the {self.title} archive again")
            for channel, plane in enumerate(np.split(file_images, 3, axis=1)):
                interleaved[..., channel] = plane  # several times as fast as one transposed copy
            labels.append(file_labels)
        return ImageSet(images.reshape(-1, 32, 32, 3), np.concatenate(labels), len(self.names))

    def files(self, folder: pathlib.Path, split: str) -> list[pathlib.Path]:
        found = self._find(folder, split)
        if found is None:
            return []
        version, place = found
        paths = [place] if place.is_file() else [place / name for name in version.files[split]]
        return [path for path in paths if path.is_file()]

    def binary_files(self, split: str, images: np.ndarray, labels: np.ndarray) -> Iterator[tuple[str, bytes]]:
        """The files of the binary version that hold images [n 32 32 3] and labels [n], with their paths.

        Of CIFAR-100 the coarse labels, which `load` does not read, are 0.
        """
        files = self.binary.files[split]
        records = np.zeros((len(images), self.label_bytes + NUM_PIXELS), np.uint8)
        records[:, self.label_bytes - 1] = labels
        records[:, self.label_bytes :] = images.transpose(0, 3, 1, 2).reshape(-1, NUM_PIXELS)
        for name, own in zip(files, np.split(records, len(files)), strict=True):
            yield f"{self.binary.folder}/{name}", own.tobytes()

    def _find(self, folder: pathlib.Path, split: str) -> tuple[Version, pathlib.Path] | None:
        """A version of the set that is there, and the folder of its files or the path of its archive."""
        for version in (self.binary, self.python):
            for place in (folder, folder / version.folder):
                if (place / next(iter(version.files[split]))).is_file():
                    return version, place
        for version in (self.binary, self.python):
            path = folder / version.archive
            if path.is_file():
                return version, path
        return None

    def _read_file(self, path: pathlib.Path, md5: str | None) -> bytes:
        if not path.exists():
            raise InputError(f"{path.name} is missing in {path.parent}: unpack the {self.title} archive again")
        tell_if_not_official(path, md5)
        return path.read_bytes()

    def _decode_binary(self, data: bytes, num_images: int) -> tuple[np.ndarray, np.ndarray]:
        """Planar images [n, 3072] and labels [n] of a file. Raises ValueError if the file has other content."""
        record_bytes = self.label_bytes + NUM_PIXELS
        if len(data) != num_images * record_bytes:
            raise ValueError(f"has {len(data)} bytes, expected {num_images * record_bytes}")
        records = np.frombuffer(data, np.uint8).reshape(num_images, record_bytes)
        return records[:, self.label_bytes :], records[:, self.label_bytes - 1].astype(np.int64)

    def _decode_pickle(self, data: bytes, num_images: int) -> tuple[np.ndarray, np.ndarray]:
        """The same for the python version."""
        try:
            batch = _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
            images, labels = np.asarray(batch[b"data"], np.uint8), np.asarray(batch[self.label_key], np.int64)
            if images.shape != (num_images, NUM_PIXELS) or labels.shape != (num_images,):
                raise ValueError(f"arrays of shape {images.shape} and {labels.shape}")
        except Exception as error:  # a damaged pickle can raise anything
            raise ValueError(f"cannot be read ({error})") from error
        return images, labels


CIFAR10 = Cifar(
    title="CIFAR-10",
    names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    label_bytes=1,
    label_key=b"labels",
    binary=Version(
        "cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-batches-bin",
        {"train": dict.fromkeys(f"data_batch_{i}.bin" for i in range(1, 6)), "test": {"test_batch.bin": None}},
    ),
    python=Version(
        "cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        "cifar-10-batches-py",
        {
            "train": {
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            },
            "test": {"test_batch": "40351d587109b95175f43aff81a1287e"},
        },
    ),
)
CIFAR100 = Cifar(  # its labels are the fine ones; a binary record has a coarse one before
    title="CIFAR-100",
    names=tuple(FINE.split()),
    label_bytes=2,
    label_key=b"fine_labels",
    binary=Version(
        "cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
        "cifar-100-binary",
        {"train": {"train.bin": None}, "test": {"test.bin": None}},
    ),
    python=Version(
        "cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-python",
        {"train": {"train": "16019d7e3df5f24257cddd939b257f8d"}, "test": {"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}},
    ),
)
SETS = {"cifar10": CIFAR10, "cifar100": CIFAR100}


def _read_members(archive: pathlib.Path, members: Collection[str]) -> list[bytes]:
    """The contents of files in an archive, without unpacking it. Reads to its end, where the checksum is."""
    contents: dict[str, bytes] = {}
    at = archive.name
    try:
        with tarfile.open(archive) as tar:
            for info in tar:
                if (at := info.name) not in members:
                    continue
                if not info.isreg() or info.size > MOST_BYTES:
                    raise tarfile.TarError("is no plain file of that set")
                file = tar.extractfile(info)
                contents[at] = file.read() if file else b""
            while tar.fileobj is not None and tar.fileobj.read(1 << 20):
                pass
        for at in members:
            if at not in contents:
                raise tarfile.TarError("is not there")
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise InputError(
            f"{archive} cannot be read at {at} ({error}): download it again from {URL}{archive.name}"
        ) from error
    return [contents[member] for member in members]


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles only numpy arrays and plain containers, because a pickle can name any function."""

    ALLOWED = (
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
    )

    def find_class(self, module, name):
        if (module, name) == ("_codecs", "encode"):  # Python 3 decodes strings of Python 2 with it
            return lambda text, _: text.encode("latin1")
        if (module, name) in self.ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
