"""The pinned versions that CI installs lie within the bounds that users are promised, on the Python that it takes."""

import importlib.metadata
import re

from packaging.requirements import Requirement

from tests.support.command import ROOT
from tests.support.packaging import requirements

# Of extras that CI does without.
NOT_INSTALLED = ("tensorflow-cpu", "wandb", "libtpu", "jax-cuda12-plugin", "jax-cuda12-pjrt")
NOT_INSTALLED += ("nvidia-cuda-nvcc", "nvidia-cuda-nvdisasm", "nvidia-cuda-nvrtc")


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_pins_are_exact_and_within_their_bounds():
    lines = (ROOT / "launch" / "constraints.txt").read_text().splitlines()
    pins = {normal(pin.name): pin for pin in (Requirement(line) for line in lines if not line.startswith("#"))}
    versions = {}
    for name, pin in pins.items():
        (specifier,) = pin.specifier
        assert specifier.operator == "==", name
        versions[name] = specifier.version
    (marker,) = {str(pin.marker) for pin in pins.values()}
    (newest,) = re.findall(r"^PYTHONS=\((\S+)", (ROOT / "launch" / "python.sh").read_text(), re.MULTILINE)
    assert marker == f'python_version == "{newest}"'
    bounds = [bound for extra in requirements().values() for bound in extra]
    assert len(bounds) > 30
    for bound in bounds:
        if bound.name not in NOT_INSTALLED:
            assert bound.specifier.contains(versions[normal(bound.name)]), bound


def test_what_colab_has_is_within_the_bounds():
    """So that pip replaces none of it; launch/versions.sh --all lets pip say so."""
    lines = (ROOT / "launch" / "colab.txt").read_text().splitlines()
    there = dict(re.fullmatch(r"(\S+)==(\S+)", line).groups() for line in lines if not line.startswith("#"))
    there = {normal(name): version for name, version in there.items()}
    promised = map(Requirement, importlib.metadata.requires("posattn_jax"))
    extras = ("", "train", "tfds", "nlp", "export", "colab")
    bounds = [each for each in promised if not each.marker or any(each.marker.evaluate({"extra": e}) for e in extras)]
    common = [bound for bound in bounds if normal(bound.name) in there]
    assert {"jax", "flax", "numpy", "optax", "orbax-checkpoint"} <= {bound.name for bound in common}
    for bound in common:
        assert bound.specifier.contains(there[normal(bound.name)]), bound
