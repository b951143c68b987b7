"""Ctrl-C and SIGTERM end a run between two steps, after it has saved."""

import os
import signal
from types import FrameType

import jax
from jax.experimental import multihost_utils


class Interrupted(Exception):
    """The run was asked to stop, has saved, and can be resumed."""

    def __init__(self, signum: int, step: int):
        super().__init__(
            f"stopped by {signal.Signals(signum).name} at step {step}; saved: the same command continues from there"
        )
        self.exit_code = 128 + signum


class Interruption:
    """While active, the first SIGINT or SIGTERM is noted; a second SIGINT acts at once.

    A second SIGTERM does not: a cluster sends it to every process of a job, and those that started a run pass it on.

    Of several processes it is enough that one is asked: jax, which has SIGTERM to itself then, finds a step that none
    of them has passed, and all are told there.
    """

    def __init__(self):
        self.signum: int | None = None

    def __enter__(self) -> "Interruption":
        note = {signal.SIGINT: self._note, signal.SIGTERM: self._note}
        if jax.process_count() > 1:
            note = {signal.SIGINT: lambda *_: os.kill(os.getpid(), signal.SIGTERM)}
        self._previous = {signum: signal.signal(signum, handler) for signum, handler in note.items()}
        return self

    def __exit__(self, *_) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def asked_at(self, step: int) -> bool:
        """Whether to stop now; to be called after every step."""
        if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step):
            self.signum = signal.SIGTERM
        return self.signum is not None

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        if signum == signal.SIGINT:
            signal.signal(signum, self._previous[signum])
