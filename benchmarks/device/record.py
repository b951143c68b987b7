"""The file of one case, written after every step, so that another process can go on: whatever ended the first."""

import contextlib
import json
import os
import pathlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from posattn_jax.system.files import write_json

# The exit code of a process that another one should go on from.
AGAIN = 75
# What a step that has begun may take beyond the budget.
GRACE_SECONDS = 25.0
TRIES = 2


class Clock:
    """The time that all processes of one check share.

    Attributes:
      end: when nothing more is started, in seconds since 1970.
      step_seconds: after so long a program that has not been compiled and run is given up.
    """

    def __init__(self, started: float, minutes: float, step_seconds: float):
        self.end = started + 60 * minutes
        self.step_seconds = step_seconds

    @property
    def spent(self) -> bool:
        """Whether nothing more is started."""
        return time.time() >= self.end

    @property
    def seconds_left(self) -> float:
        """Until everything ends."""
        return max(0.1, self.end + GRACE_SECONDS - time.time())


class Record:
    """What was measured of one case, by pass and implementation, `{"absent": REASON}` where there is nothing.

    Attributes:
      values: the file's content: the header, and what `section` returns under "passes".
    """

    def __init__(self, path: pathlib.Path, header: dict[str, Any]):
        """Goes on with the file where its header is the same, and begins anew where it is not."""
        self.path = path
        self.values: dict[str, Any] = json.loads(json.dumps(header)) | {"passes": {}}
        old = json.loads(path.read_text()) if path.exists() else {}
        if {name: old.get(name) for name in header} == {name: self.values[name] for name in header}:
            self.values = old
        if "running" in self.values:
            self._note_what_did_not_come_back(*self.values.pop("running"))

    def section(self, name: str) -> dict[str, Any]:
        """Of one pass, with its "implementations"."""
        return self.values["passes"].setdefault(name, {"implementations": {}})

    def results(self, name: str) -> dict[str, dict[str, Any]]:
        """Of one pass, by implementation."""
        return self.section(name)["implementations"]

    def save(self) -> None:
        """Writes the file."""
        write_json(self.path, self.values)

    @contextlib.contextmanager
    def attempt(self, name: str, implementation: str, clock: Clock) -> Iterator[None]:
        """A step that may crash, hang or run out of time: the file says that it has begun, and later that it has ended.

        Where it takes too long this process ends with `AGAIN`.
        """
        self.values["running"] = [name, implementation]
        self.save()
        limit = min(clock.step_seconds, clock.seconds_left)

        def give_up():
            del self.values["running"]
            if limit == clock.step_seconds:
                self.results(name)[implementation] = {"absent": f"took more than {limit:g} s"}
            self.save()
            os._exit(AGAIN)

        timer = threading.Timer(limit, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            del self.values["running"]
            self.save()

    @property
    def given_up(self) -> bool:
        """Whether it has failed so often, as a whole, that it is not tried again."""
        return len(self.values.get("failures", ())) >= TRIES

    def note_failure(self, error: Exception) -> None:
        """Notes what no step has caught; ends this process where the device is lost."""
        first, *_ = str(error).strip().splitlines() or ["no message"]
        self.values.setdefault("failures", []).append(f"{type(error).__name__}: {first}")
        self.save()
        self.check_device()

    def check_device(self) -> None:
        """Ends this process, for another to go on, where the device computes no longer after what has just failed."""
        try:
            jax.block_until_ready(jnp.ones(8) + 1)
        except Exception:
            self.save()
            sys.exit(AGAIN)

    def _note_what_did_not_come_back(self, name: str, implementation: str) -> None:
        """It is tried once more: whoever ended that process may have meant the whole of it."""
        tries = self.values.setdefault("tries", {})
        step = f"{name} {implementation}"
        tries[step] = tries.get(step, 0) + 1
        if tries[step] >= TRIES:
            reason = f"ended the process that ran it, {TRIES} times"
            self.results(name)[implementation] = {"absent": reason}
        self.save()
