"""Messages on stderr about what the program is doing, if it takes long."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from tqdm import tqdm

from posattn_jax.system.processes import is_first

AFTER, EVERY = 1.0, 30.0  # seconds


def tell(text: str) -> None:
    """Prints a line in the first process only, without breaking a progress bar."""
    if is_first():
        tqdm.write(text, file=sys.stderr)


@contextlib.contextmanager
def doing(what: str, after: float | None = None, every: float = EVERY) -> Iterator[None]:
    """Prints "WHAT ..." when the block has run for `after` seconds, and then its run time every `every` seconds.

    So a quick block prints nothing. By default `after` is AFTER; with 0 the line comes at once.
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
