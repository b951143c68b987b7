"""Modules that have moved: what earlier versions called them still works, in imports, in saved runs and in commands."""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

# What a module was called, and what it is called now; so are the modules in it.
MOVED = {
    "posattn_jax.build": "posattn_jax.config",
    "posattn_jax.nn.examples": "posattn_jax.nn.sharding",
    "posattn_jax.ops.attention.tpu.layout": "posattn_jax.ops.attention.tpu.fused",
    "posattn_jax.system.pictures": "posattn_jax.system.plot_style",
}


def present(name: str) -> str:
    """The present name of a module, or of a class, as MODULE:CLASS. Any other text stays as it is."""
    for old, new in MOVED.items():
        if name == old or name.startswith((f"{old}.", f"{old}:")):
            return new + name.removeprefix(old)
    return name


def with_present_classes(saved: dict[str, Any]) -> dict[str, Any]:
    """An object of a JSON file, whose classes have their present names. It is a hook of `json.loads`."""
    return {field: present(value) if isinstance(value, str) else value for field, value in saved.items()}


class _Finder(MetaPathFinder, Loader):
    """Imports a module by the name that it had. It is one module under both names."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if present(fullname) != fullname else None

    def exec_module(self, module: Any) -> None:
        sys.modules[module.__name__] = importlib.import_module(present(module.__name__))


def install() -> None:
    """Makes the old names importable."""
    sys.meta_path.insert(0, _Finder())  # the first, or a moved package's files are found once more, by its old name
