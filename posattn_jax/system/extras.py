"""The extras of setup.py, and the error message of a command if a library of an extra is missing."""

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping

from posattn_jax.system.errors import InputError

# The libraries of each extra, by the names under which they are imported. The layers do not need them.
LIBRARIES: Mapping[str, tuple[str, ...]] = {
    extra: tuple(libraries.split())
    for extra, libraries in {
        "train": "PIL grain markdown matplotlib optax orbax pooch rich scipy sentencepiece sklearn submitit "
        "tensorboardX tqdm",
        "tfds": "importlib_resources tensorflow_datasets",
        "nlp": "sacrebleu sacremoses",
        "export": "flatbuffers",
        "convert": "safetensors tokenizers",
        "wandb": "wandb",
    }.items()
}


@contextlib.contextmanager
def named() -> Iterator[None]:
    """Turns a missing library of an extra into an InputError that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if told := _told(str(error.name).partition(".")[0]):
            raise InputError(told) from error
        raise


def need(*libraries: str) -> None:
    """Raises InputError if one of these libraries of extras is missing. It imports none.

    Call it before work whose end needs them.
    """
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            raise InputError(_told(library))


def _told(library: str) -> str:
    """The message that a library of an extra is missing; empty for any other library."""
    extra = next((extra for extra, libraries in LIBRARIES.items() if library in libraries), None)
    return f"{library} is missing: pip install posattn_jax[{extra}]" if extra else ""
