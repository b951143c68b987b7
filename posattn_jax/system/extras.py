"""The extras of setup.py: what a command says where a library of one is missing."""

import contextlib
from collections.abc import Iterator, Mapping

from posattn_jax.system.errors import InputError

# Of each extra the libraries that it has and the layers do without, as they are imported.
LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "train": (
        "PIL",
        "grain",
        "markdown",
        "matplotlib",
        "optax",
        "orbax",
        "pooch",
        "rich",
        "scipy",
        "sklearn",
        "submitit",
        "tensorboardX",
        "tqdm",
    ),
    "tfds": ("importlib_resources", "tensorflow_datasets"),
    "nlp": ("sacrebleu", "sacremoses", "sentencepiece"),
    "export": ("flatbuffers",),
    "convert": ("safetensors", "tokenizers"),
    "wandb": ("wandb",),
}


@contextlib.contextmanager
def named() -> Iterator[None]:
    """Inside, a library of an extra that is missing is an InputError that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = str(error.name).partition(".")[0]
        for extra, libraries in LIBRARIES.items():
            if library in libraries:
                raise InputError(f"{library} is missing: pip install posattn_jax[{extra}]") from error
        raise
