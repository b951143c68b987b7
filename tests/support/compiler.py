"""Whether there is a C++ compiler: without one, the tests of what is compiled are skipped, and for no other reason."""

import pytest

from posattn_jax.system.compiler import find_compiler


def missing(find):
    """The error of `find`; None if it finds what it looks for."""
    try:
        find()
    except RuntimeError as error:
        return str(error)
    return None


NO_COMPILER = missing(find_compiler)
needs_compiler = pytest.mark.skipif(NO_COMPILER is not None, reason=str(NO_COMPILER))
