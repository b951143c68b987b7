"""Compiled programs, kept on disk: a run that goes on, or another of its kind, does not compile again."""

import pathlib
import warnings

import jax


def keep(folder: pathlib.Path) -> None:
    """Keeps every program in a folder, unless jax was told where to (`JAX_COMPILATION_CACHE_DIR`).

    Programs are found again by what they compute, for which devices, with which jax and which flags; a damaged one is
    compiled anew. A folder that cannot be written to is no reason to stop: then nothing is kept.
    """
    if jax.config.jax_compilation_cache_dir is not None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
