"""Modules that have moved: what earlier versions called them still works, in imports, in saved runs and in commands."""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

# What a module was called, and what it is called now; so are the modules in it.
MOVED = {
    "posattn_jax.analysis.labels": "posattn_jax.analysis.comparison",
    "posattn_jax.analysis.report_page": "posattn_jax.analysis.report",
    "posattn_jax.build": "posattn_jax.config",
    "posattn_jax.data.downloads": "posattn_jax.data.official.files",
    "posattn_jax.data.official.archives": "posattn_jax.data.official.files",
    "posattn_jax.data.official.wikitext": "posattn_jax.data.official.sets",
    "posattn_jax.data.own": "posattn_jax.data.pipeline.user_data",
    "posattn_jax.data.own_images": "posattn_jax.data.images.user_images",
    "posattn_jax.data.remembered": "posattn_jax.data.pipeline.checksums",
    "posattn_jax.nn.axis_names": "posattn_jax.nn.sharding",
    "posattn_jax.nn.buckets": "posattn_jax.nn.biases",
    "posattn_jax.nn.decay": "posattn_jax.nn.biases",
    "posattn_jax.nn.examples": "posattn_jax.nn.sharding",
    "posattn_jax.nn.memory": "posattn_jax.nn.places",
    "posattn_jax.ops.attention.tpu.layout": "posattn_jax.ops.attention.tpu.fused",
    "posattn_jax.ops.buckets": "posattn_jax.ops.biases",
    "posattn_jax.ops.decay": "posattn_jax.ops.biases",
    "posattn_jax.sweeps.table": "posattn_jax.sweeps.sweep",
    "posattn_jax.system.pictures": "posattn_jax.system.plot_style",
    "posattn_jax.train.bounds": "posattn_jax.train.program",
    "posattn_jax.train.retention": "posattn_jax.train.checkpoint",
}
# Modules that are in a package of their own now.
PACKED = {
    "analysis.runs": "curves joining run_folders runs_file",
    "data.images": "arrays cifar image_files image_folder image_sets imagenet mnist moving_mnist",
    "data.text": "agreement characters corpus glue lines number_words parallel sentence_files sequences tables tagged "
    "text_files translations words",
    "data.tokenizers": "tokenizer tokenizer_json",
    "data.pipeline": "batches buckets data_set packing prepared",
}
MOVED |= {
    f"posattn_jax.{package.partition('.')[0]}.{module}": f"posattn_jax.{package}.{module}"
    for package, modules in PACKED.items()
    for module in modules.split()
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
