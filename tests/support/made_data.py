"""CIFAR and MNIST in their official formats, made from a seed: for tests only."""

import gzip
import io
import pathlib
import pickle
import tarfile

import numpy as np


def records(seed, num_images=10_000):
    """Planar images whose mean brightness tells the label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, num_images, dtype=np.uint8)
    return labels[:, None] * np.uint8(20) + rng.integers(0, 50, (num_images, 3072), dtype=np.uint8), labels


def write_binary(folder: pathlib.Path) -> pathlib.Path:
    """cifar-10-batches-bin with all its files."""
    inner = folder / "cifar-10-batches-bin"
    inner.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate([f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]):
        images, labels = records(i)
        (inner / name).write_bytes(np.concatenate([labels[:, None], images], axis=1).tobytes())
    return inner


def write_python(folder: pathlib.Path) -> pathlib.Path:
    """cifar-10-batches-py with all its files, holding what the binary version holds."""
    inner = folder / "cifar-10-batches-py"
    inner.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate([f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]):
        images, labels = records(i)
        batch = {b"data": images, b"labels": labels.tolist(), b"batch_label": name.encode()}
        (inner / name).write_bytes(pickle.dumps(batch, protocol=2))
    return inner


def fine_and_coarse(num_images=10_000):
    """Labels of CIFAR-100's test images: fine and coarse."""
    fine = np.arange(num_images, dtype=np.uint8) % 100
    return fine, fine // 5


def write_binary_100(folder: pathlib.Path) -> pathlib.Path:
    """cifar-100-binary with its test file, and a train file that is too short."""
    inner = folder / "cifar-100-binary"
    inner.mkdir(parents=True, exist_ok=True)
    (images, _), (fine, coarse) = records(6), fine_and_coarse()
    (inner / "test.bin").write_bytes(np.column_stack([coarse, fine, images]).tobytes())
    (inner / "train.bin").write_bytes(bytes(3074 * 2))
    return inner


def write_python_100(folder: pathlib.Path) -> pathlib.Path:
    """cifar-100-python with its test file, holding what the binary version holds."""
    inner = folder / "cifar-100-python"
    inner.mkdir(parents=True, exist_ok=True)
    (images, _), (fine, coarse) = records(6), fine_and_coarse()
    batch = {
        b"data": images,
        b"fine_labels": fine.tolist(),
        b"coarse_labels": coarse.tolist(),
        b"filenames": [b"a.png"],
    }
    (inner / "test").write_bytes(pickle.dumps(batch, protocol=2))
    return inner


def write_idx(path: pathlib.Path, array: np.ndarray) -> pathlib.Path:
    """An idx file of unsigned bytes, gzipped where its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def strokes(seed, num_images):
    """MNIST's shapes: black images with a bright vertical bar of ten columns, whose place tells the label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, num_images)
    images = np.zeros((num_images, 28, 28), np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[4:24, 4 + label : 14 + label] = rng.integers(128, 256, (20, 10))
    return images, labels


def write_mnist(folder: pathlib.Path, num_train=100, num_test=50, suffix=".gz") -> pathlib.Path:
    """The four idx files."""
    for seed, (name, num_images) in enumerate({"train": num_train, "t10k": num_test}.items()):
        images, labels = strokes(seed, num_images)
        write_idx(folder / f"{name}-images-idx3-ubyte{suffix}", images)
        write_idx(folder / f"{name}-labels-idx1-ubyte{suffix}", labels)
    return folder


def write_archive(inner: pathlib.Path, archive: pathlib.Path, name: str) -> pathlib.Path:
    """A .tar.gz of one file of such a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=0) as tar:
        tar.add(inner / name, arcname=f"{inner.name}/{name}")
    archive.write_bytes(buffer.getvalue())
    return archive
