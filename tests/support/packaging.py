"""What setup.py tells setuptools."""

import runpy
import sys
from types import SimpleNamespace
from unittest import mock

from packaging.requirements import Requirement

from tests.support.command import ROOT


def metadata(folder=ROOT):
    """The arguments of `setup`: builds need setuptools, and tests do not."""
    told = {}
    setuptools = SimpleNamespace(setup=lambda **arguments: told.update(arguments), find_packages=lambda **_: [])
    with mock.patch.dict(sys.modules, setuptools=setuptools):
        runpy.run_path(str(folder / "setup.py"))
    return told


def requirements():
    """What is promised by extra; the core's is that of ""."""
    told = metadata()
    lines = {"": told["install_requires"]} | told["extras_require"]
    return {extra: [Requirement(each) for each in of] for extra, of in lines.items()}
