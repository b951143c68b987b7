"""The command line as a user meets it, each command in a process of its own, on one device."""

import functools
import multiprocessing
import multiprocessing.forkserver
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from unittest import mock

ROOT = pathlib.Path(__file__).parents[2]
IMPORTED = ["posattn_jax.main", "posattn_jax.run.train", "posattn_jax.sweeps.command", "posattn_jax.analysis.report"]


def environment(num_devices=1):
    """Of the tests, with their cache of compiled programs."""
    return os.environ | {
        "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("device_count=8", f"device_count={num_devices}"),
        "JAX_COMPILATION_CACHE_DIR": os.environ["POSATTN_TEST_CACHE"],
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def with_config(arguments, config):
    return [*([f"--config={config}"] if config else []), *arguments]


def start(*arguments, config="configs/digits.py:tiny", num_devices=1, **options):
    """The command itself."""
    return subprocess.Popen(
        [sys.executable, "-m", "posattn_jax.main", *with_config(arguments, config)],
        cwd=ROOT,
        env=environment(num_devices),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def told(err):
    """The lines of stderr but those that say what is being done, which are there where it took a second."""
    return [line for line in err.strip().splitlines() if not re.search(r" \.\.\.( \d+ s)?$", line)]


def run(*arguments, **options):
    """The command itself: its exit code and what it printed, on stdout and on stderr."""
    process = start(*arguments, **options)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def run_forked(*arguments, config="configs/digits.py:tiny", given=""):
    """As `run`, in a fork of a process that has imported the libraries: without the seconds which that takes.

    `given` is its standard input.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder, name) for name in ("in", "out", "err")]
        paths[0].write_text(given)
        process = _server().Process(target=_main, args=(with_config(arguments, config), *paths))
        process.start()
        process.join(timeout=300)
        return process.exitcode, *(path.read_text() for path in paths[1:])


@functools.cache
def _server():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    with mock.patch.dict(os.environ, environment()):
        multiprocessing.forkserver.ensure_running()
    return context


def _main(arguments, *paths):
    """In the fork: what `python -m posattn_jax.main` does."""
    os.chdir(ROOT)
    given, *written = paths
    sys.stdin = given.open()
    for stream, path in zip((sys.stdout, sys.stderr), written, strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream.fileno())
    from posattn_jax import main

    sys.argv = [main.__file__, *arguments]
    sys.exit(main.run(sys.argv))
