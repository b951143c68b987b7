"""How long a run has taken, how fast it is, and what it waits for."""

import contextlib
import os
import pathlib
import time
from collections.abc import Iterator

_IMPORTED = time.perf_counter()


def seconds_alive() -> float:
    """Since this process was started; where the system does not tell, since it imported this module."""
    try:
        after_boot = int(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - after_boot / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return time.perf_counter() - _IMPORTED


class Clock:
    """The seconds that training has gone on, and the rate of its updates without compilation and evaluation."""

    def __init__(self, step: int):
        self._started = time.perf_counter()
        self.start_rate(step)
        self.compiling = True

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return time.perf_counter() - self._started

    def start_rate(self, step: int) -> None:
        """Rate and waiting are from here on."""
        self.compiling = False
        self._rate_step, self._rate_started = step, time.perf_counter()
        self._waited = 0.0

    def steps_per_second(self, step: int) -> float:
        """Since `start_rate`."""
        return (step - self._rate_step) / (time.perf_counter() - self._rate_started)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time in the block as waiting for data: what the device does meanwhile is not known, so that this
        is the most that it can have been idle."""
        started = time.perf_counter()
        yield
        self._waited += time.perf_counter() - started

    @property
    def waiting_share(self) -> float:
        """The share of the time since `start_rate`."""
        return self._waited / (time.perf_counter() - self._rate_started)
