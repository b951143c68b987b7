"""Data as users bring them, made from a seed: a folder of images, arrays, tables of sentences. For tests only."""

import csv
import json
import pathlib

import numpy as np
from PIL import Image

from tests.support.made_text import sentences

CLASSES = ("across", "along")


def stripes(label: int, height: int = 8, width: int = 8) -> np.ndarray:
    """[height width 3] dark lines with light ones between, across or along."""
    rows, columns = np.indices((height, width))
    return np.repeat(np.uint8(60 + 120 * ((columns if label else rows) % 2))[..., None], 3, -1)


def write_images(folder: pathlib.Path, number: int = 300) -> pathlib.Path:
    """FOLDER/CLASS: PNG of 8 x 8; a JPEG of another size, a WebP, a palette, RGBA; a broken file; and text."""
    rng = np.random.default_rng(0)
    for name in CLASSES:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for i in range(number):
        pixels = stripes(i % 2) + rng.integers(0, 60, (8, 8, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / CLASSES[i % 2] / f"{i:03}.png")
    Image.fromarray(stripes(1, 16, 24)).save(folder / "along" / "wide.jpg")
    along = Image.fromarray(stripes(1))
    along.save(folder / "along" / "one.webp", lossless=True)
    along.convert("P").save(folder / "along" / "palette.png")
    along.convert("RGBA").save(folder / "along" / "transparent.png")
    (folder / "across" / "broken.png").write_bytes((folder / "across" / "000.png").read_bytes()[:60])
    (folder / "notes.txt").write_text("these are no images")
    return folder


def write_volumes(path: pathlib.Path, number: int = 40) -> pathlib.Path:
    """Floats of 4 x 3 x 6 whose mean tells the label, and a row that is not a number."""
    labels = np.array(["ill", "well"])[np.arange(number) % 2]
    volumes = (
        np.random.default_rng(0).normal(0, 0.1, (number, 4, 3, 6))
        + np.where(labels == "ill", -1, 1)[:, None, None, None]
    )
    volumes[3, 0, 0, 0] = np.nan
    np.savez(path, inputs=volumes, labels=labels)
    return path


def labelled(number: int, seed: int = 0) -> list[tuple[str, str]]:
    """Sentences whose first word tells the label."""
    words = np.random.default_rng(seed).integers(2, size=number)
    labels = {0: ("Yes", "true"), 1: ("No", "false")}
    return [
        (f"{labels[word][0]} {each}", labels[word][1])
        for word, each in zip(words, sentences(seed, number), strict=True)
    ]


def write_table(path: pathlib.Path, header: tuple[str, ...], cells: list[tuple]) -> pathlib.Path:
    """TSV, CSV or JSONL, as the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps(dict(zip(header, row, strict=True))) + "\n" for row in cells)
        elif path.suffix == ".csv":
            csv.writer(file).writerows([header, *cells])
        else:
            file.writelines("\t".join(map(str, row)) + "\n" for row in [header, *cells])
    return path
