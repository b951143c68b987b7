"""Eight virtual devices for every test, and float64 where a test asks for it."""

import os

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import jax
import pytest


@pytest.fixture
def float64():
    """Arrays are float64 by default inside the test."""
    with jax.enable_x64(True):
        yield
