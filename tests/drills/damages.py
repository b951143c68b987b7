"""What can happen to a file, one way at a time."""

import pathlib


def truncate(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: pathlib.Path) -> None:
    path.write_bytes(b"")


def flip_a_bit(path: pathlib.Path) -> None:
    """The lowest of the byte in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def delete(path: pathlib.Path) -> None:
    path.unlink()


DAMAGES = (truncate, empty, flip_a_bit, delete)
