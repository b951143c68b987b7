"""The configs that come with the package, each name in the file of a family by itself: "digits", "bert:small"."""

import importlib
import pathlib

from configs import bert, nmt, translution

PATHS = [*pathlib.Path("configs").glob("*.py"), *pathlib.Path("configs/studies").glob("*.py")]
FILES = sorted(".".join(path.with_suffix("").parts[1:]) for path in PATHS if path.stem != "__init__")
FAMILIES = {"bert": bert.SIZES, "nmt": tuple(nmt.SETS), "translution": translution.NAMES}
NAMES = [f"{file}:{name}".rstrip(":") for file in FILES for name in FAMILIES.get(file, ("",))]


def find(name, word=""):
    """The module of one of `NAMES`, and the variant that is this name with a word; "tiny" is any file's for tests."""
    file, _, first = name.partition(":")
    word = "test" if (file, word) == ("bert", "tiny") else word  # where "tiny" is a size
    return importlib.import_module(f"configs.{file}"), ",".join(filter(None, (first, word)))


def get_config(name, word=""):
    module, variant = find(name, word)
    return module.get_config(variant)


def sweep(name, word=""):
    module, variant = find(name, word)
    return module.sweep(variant)
