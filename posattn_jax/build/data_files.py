"""From a config to the files that its data is read from."""

import pathlib
from typing import Any

from ml_collections import ConfigDict

from posattn_jax.data import glue, image_sets, parallel, text_files, tfds_translation
from posattn_jax.data.remembered import below
from posattn_jax.system.errors import InputError


def data_files(config: ConfigDict) -> dict[str, pathlib.Path]:
    """The files of every part, the test's too, as far as they are there: see `remembered.Files`."""
    data: Any = config.data
    folder = pathlib.Path(data.dir)
    match config.task:
        case "classification":
            paths = image_sets.files(data.name, folder)
        case "masked_lm":
            paths = _text(folder)
        case "glue":
            paths = glue.files(data.name, folder)
        case "translation":
            paths = _parallel(data, folder)
        case _:
            return {}
    found = below(folder, paths)
    if config.task == "masked_lm" and data.validation_dir:
        held_out = pathlib.Path(data.validation_dir)
        found |= below(held_out, _text(held_out), "data.validation_dir")
    return found


def _text(folder: pathlib.Path) -> list[pathlib.Path]:
    try:
        return text_files.find(folder, "data.dir")
    except InputError:  # told when it is read
        return []


def _parallel(data: Any, folder: pathlib.Path) -> list[pathlib.Path]:
    if data.name.startswith("tfds/"):
        prepared = tfds_translation.find(data.name.removeprefix("tfds/"), folder)
        return [] if prepared is None else tfds_translation.files(prepared)
    paths = []
    for part in (data.train_part, data.validation_part, data.test_part):
        for language in (data.source, data.target):
            try:
                paths.append(parallel.find(folder, part, language, "data.dir"))
            except InputError:  # told when it is read
                continue
    return paths
