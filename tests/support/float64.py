"""Arrays are float64 by default: of every jax, in all threads."""

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def float64() -> Iterator[None]:
    """Inside; afterwards as before."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)
