"""CIFAR in its official layouts, made from a seed: for tests only."""

import io
import pathlib
import pickle
import tarfile

import numpy as np


def records(seed, num_images=10_000):
    """Planar images whose mean brightness tells the label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, num_images).astype(np.uint8)
    images = (labels[:, None] * 20 + rng.integers(0, 50, (num_images, 3072))).astype(np.uint8)
    return images, labels


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


def write_archive(inner: pathlib.Path, archive: pathlib.Path, name: str) -> pathlib.Path:
    """A .tar.gz of one file of such a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=0) as tar:
        tar.add(inner / name, arcname=f"{inner.name}/{name}")
    archive.write_bytes(buffer.getvalue())
    return archive
