"""What a prepared set says of its features, looked at before tensorflow-datasets does.

Its `features.json` names Python classes, whose modules would be imported, which is to be executed, whatever they are.
"""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

from posattn_jax.system.errors import InputError

NAMES = ("pythonClassName", "python_class_name", "type")  # the last in older ones
MODULES = "tensorflow_datasets.core.features."


def check(folder: pathlib.Path) -> None:
    """InputError where a set below `folder` names a class that is not tensorflow-datasets' own."""
    for path in folder.rglob("features.json"):
        try:
            named = list(_classes(json.loads(path.read_text(encoding="utf-8"))))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: cannot be read ({error}): prepare the set again") from error
        for name in named:
            if not str(name).startswith(MODULES):
                raise InputError(f'{path}: names the class "{name}": expected features of tensorflow-datasets')


def _classes(described: Any) -> Iterator[Any]:
    """Every class named in a tree of JSON."""
    if isinstance(described, dict):
        yield from (described[key] for key in NAMES if key in described)
        described = list(described.values())
    for each in described if isinstance(described, list) else ():
        yield from _classes(each)
