"""How long a run has taken, how fast it is, and how long it waits for data."""

import contextlib
import os
import pathlib
import time
from collections.abc import Iterator

_IMPORTED = time.perf_counter()


def seconds_alive() -> float:
    """Seconds since this process started or, if the system does not say when, since it imported this module."""
    try:
        after_boot = int(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - after_boot / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return time.perf_counter() - _IMPORTED


class Clock:
    """Measures the seconds of training, and the rate of its updates without compilation and evaluation."""

    def __init__(self, step: int):
        self._started = time.perf_counter()
        self.start_rate(step)
        self.compiling = True

    @property
    def seconds(self) -> float:
        """Seconds since this clock was created."""
        return time.perf_counter() - self._started

    def start_rate(self, step: int) -> None:
        """Measures the rate and the waiting from now on."""
        self.compiling = False
        self._rate_step, self._rate_started = step, time.perf_counter()
        self._waited = 0.0

    def steps_per_second(self, step: int) -> float | None:
        """Updates per second since `start_rate`; None if there was none: it is not known."""
        if step == self._rate_step:
            return None
        return (step - self._rate_step) / (time.perf_counter() - self._rate_started)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time in the block as waiting for data.

        The device may be busy meanwhile, so this is an upper bound of the time that it was idle.
        """
        started = time.perf_counter()
        yield
        self._waited += time.perf_counter() - started

    @property
    def waiting_share(self) -> float:
        """The share of the time since `start_rate` that was spent waiting for data."""
        return self._waited / (time.perf_counter() - self._rate_started)
