"""What earlier versions called a module still works."""

import importlib

import pytest

from posattn_jax.system.moved import MOVED, present


@pytest.mark.parametrize("old", MOVED)
def test_a_module_is_the_same_under_both_names(old):
    assert importlib.import_module(old) is importlib.import_module(MOVED[old])


def test_a_module_of_a_moved_package_is_not_imported_twice():
    from posattn_jax.build import parts as of_before

    from posattn_jax.config import parts

    assert of_before is parts


def test_what_has_not_moved_stays():
    assert not MOVED.keys() & set(MOVED.values())
    assert present("posattn_jax.building:Kind") == "posattn_jax.building:Kind"
    assert present("posattn_jax.build.names:Kind") == "posattn_jax.config.names:Kind"
    with pytest.raises(ModuleNotFoundError, match=r"posattn_jax\.config\.none"):
        importlib.import_module("posattn_jax.build.none")
