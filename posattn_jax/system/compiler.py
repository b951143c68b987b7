"""Compiles C++ where it runs, once per version of the source and of the compiler."""

import contextlib
import hashlib
import logging
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from posattn_jax.system.files import cache_folder

COMPILERS = ("c++", "g++", "clang++")
SUFFIXES = (".h", ".cc", ".cu")

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def shared_library(
    source: pathlib.Path, options: Sequence[str], include: str, depends: Iterable[str]
) -> Iterator[tuple[pathlib.Path, bool]]:
    """The library made of a C++ file, and whether it is new. A new one is kept if the body does not raise.

    It is made anew if something else is in the file's folder, the options, the compiler's version or `depends`, which
    also stands for what is in the folder `include`; and if the one that was kept is not whole.
    """
    compiler = find_compiler()
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    made_of = digest(source.parent, [source.name, *options, version, *depends])
    kept = cache_folder() / f"{source.parent.name}-{made_of}.so"
    if _is_whole(kept):
        yield kept, False
        return
    _logger.info("compiling %s, once per machine: %s", source.name, kept)
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
    place = kept.parent if os.access(kept.parent, os.W_OK) else None  # the home folder may not be writable
    with tempfile.TemporaryDirectory(dir=place) as folder:
        new = pathlib.Path(folder) / kept.name
        command = [compiler, *options, f"-I{include}", str(source), "-o", str(new)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{compiler}: {first_error(done.stderr) or f'exit code {done.returncode}'}")
        _seal(new)
        yield new, True
        with contextlib.suppress(OSError):
            new.replace(kept)


def _seal(path: pathlib.Path) -> None:
    """Appends a library's checksum, which the loader does not read."""
    library = path.read_bytes()
    path.write_bytes(library + hashlib.sha256(library).digest())


def _is_whole(path: pathlib.Path) -> bool:
    """Whether a library is there as it was sealed. One that a crash has cut short ends the process that loads it."""
    try:
        sealed = path.read_bytes()
    except OSError:
        return False
    size = hashlib.sha256().digest_size
    return hashlib.sha256(sealed[:-size]).digest() == sealed[-size:]


def find_compiler() -> str:
    """The C++ compiler: `CXX`, or the first of `COMPILERS` that is there."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        raise RuntimeError(f"no C++ compiler is found ({', '.join(names)})")
    return found


def obstacle(known: dict[Any, str | None], key: Any, load: Callable[[], None], without: str) -> str | None:
    """Why `load` fails, in a line, or None. `known` remembers it by a key; a warning of `without` says it once."""
    if key not in known:
        known[key] = None  # so that `load` can use what it has loaded
        try:
            load()
        except Exception as error:
            known[key] = (str(error).strip() or type(error).__name__).splitlines()[0]
            _logger.warning("%s, other implementations are used: %s", without, known[key])
        except BaseException:  # the user interrupts it: the next call tries again
            del known[key]
            raise
    return known[key]


def digest(folder: pathlib.Path, parts: Iterable[str]) -> str:
    """A hash of the sources in a folder and of all else that the result depends on."""
    sources = [path.read_text(encoding="utf-8") for path in sorted(folder.iterdir()) if path.suffix in SUFFIXES]
    return hashlib.sha256("\0".join([*parts, *sources]).encode()).hexdigest()[:16]


def first_error(log: str) -> str | None:
    """The line of a compiler's log that says what is wrong; None if the log is empty."""
    lines = log.splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else None)
