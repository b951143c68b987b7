"""What is being done, said on stderr while it takes long."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from tqdm import tqdm

from posattn_jax.system.processes import is_first

AFTER, EVERY = 1.0, 30.0  # seconds


def tell(text: str) -> None:
    """Prints a line, of the first process alone; a bar that is there stays whole."""
    if is_first():
        tqdm.write(text, file=sys.stderr)


@contextlib.contextmanager
def doing(what: str, after: float | None = None, every: float = EVERY) -> Iterator[None]:
    """Tells "WHAT ..." once the block has taken `after` seconds, 0: at once; then every `every` seconds for how long.

    So what turns out to be quick is not told. By default `after` is AFTER.
    """
    ended, started = threading.Event(), time.perf_counter()
    after = AFTER if after is None else after
    if not after:
        tell(f"{what} ...")

    def say() -> None:
        if after and not ended.wait(after):
            tell(f"{what} ...")
        while not ended.wait(every):
            tell(f"{what} ... {time.perf_counter() - started:.0f} s")

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
