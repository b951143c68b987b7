"""Ctrl-C and SIGTERM end a run between two steps, after it has saved."""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

import jax

from posattn_jax.system.compat import multihost_utils
from posattn_jax.system.doing import tell
from posattn_jax.system.processes import signals


class Interrupted(Exception):
    """The run was asked to stop, has saved, and can be resumed."""

    def __init__(self, signum: int, step: int):
        super().__init__(
            f"stopped by {signal.Signals(signum).name} at step {step}; saved: the same command continues from there"
        )
        self.exit_code = 128 + signum


class Interruption:
    """In the block of `noted`, a first SIGINT or SIGTERM is only noted. A second SIGINT acts at once.

    A second SIGTERM does not act at once: a cluster sends SIGTERM to every process of a job, and a process that started
    a run passes it on, so a run may receive it twice.

    With several processes it is enough to signal one of them. Then jax handles SIGTERM: it finds a step that no process
    has passed yet, and all of them stop there.
    """

    def __init__(self):
        self.signum: int | None = None

    @contextlib.contextmanager
    def noted(self) -> "Iterator[Interruption]":
        note = {signal.SIGINT: self._note, signal.SIGTERM: self._note}
        if jax.process_count() > 1:
            note = {signal.SIGINT: lambda *_: os.kill(os.getpid(), signal.SIGTERM)}
        with signals(note) as self._previous:
            yield self

    def asked_at(self, step: int) -> bool:
        """Whether to stop now. Must be called after every step."""
        if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step):
            self.signum = signal.SIGTERM
        return self.signum is not None

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is None:
            again = "; a second one stops at once, and loses what is not saved" if signum == signal.SIGINT else ""
            tell(f"{signal.Signals(signum).name}: stops after the updates that have begun{again}")
        self.signum = signum
        if signum == signal.SIGINT:
            signal.signal(signum, self._previous[signum])
