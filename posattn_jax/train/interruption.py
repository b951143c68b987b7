"""Ctrl-C and SIGTERM end a run between two steps, after it has saved. They are answered at once.

Python's own handlers run between two of its instructions. So they wait for compiled code to return, which takes a
minute where a program is compiled, and seconds where a device is waited for.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import jax

from posattn_jax.system.compat import multihost_utils
from posattn_jax.system.doing import tell
from posattn_jax.system.processes import signals

LATE = 0.5  # seconds


class Interrupted(Exception):
    """The run was asked to stop, has saved, and can be resumed."""

    def __init__(self, signum: int, step: int):
        super().__init__(
            f"stopped by {signal.Signals(signum).name} at step {step}; saved: the same command continues from there"
        )
        self.exit_code = 128 + signum


@contextlib.contextmanager
def answered(answer: Callable[[int], None]) -> Iterator[None]:
    """Calls `answer`, in a thread of its own, with each signal that arrives in the block and that Python handles."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def listen() -> None:
        while arrived := os.read(reader, 1):
            answer(arrived[0])
        os.close(reader)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    previous = signal.set_wakeup_fd(writer)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        os.close(writer)
        thread.join()


@contextlib.contextmanager
def answered_if_late() -> Iterator[None]:
    """Says that a Ctrl-C was noticed where it does not end the block within half a second."""
    ended = threading.Event()

    def answer(signum: int) -> None:
        if signum == signal.SIGINT and not ended.wait(LATE):
            tell("SIGINT: stops when what is being compiled or computed is done")

    with answered(answer):
        try:
            yield
        finally:
            ended.set()


class Interruption:
    """In the block of `noted`, a first SIGINT or SIGTERM is only noted. A second SIGINT acts at once.

    A second SIGTERM does not act at once: a cluster sends SIGTERM to every process of a job, and a process that started
    a run passes it on, so a run may receive it twice.

    With several processes it is enough to signal one of them. Then jax handles SIGTERM: it finds a step that no process
    has passed yet, and all of them stop there.
    """

    def __init__(self):
        self.signum: int | None = None
        self._answered = False

    @contextlib.contextmanager
    def noted(self) -> "Iterator[Interruption]":
        note = {signal.SIGINT: self._note, signal.SIGTERM: self._note}
        if jax.process_count() > 1:
            note = {signal.SIGINT: lambda *_: os.kill(os.getpid(), signal.SIGTERM)}
        with answered(self._answer), signals(note) as self._previous:
            yield self

    def asked_at(self, step: int) -> int | None:
        """The signal that asks to stop now, if there is one. Must be called after every step."""
        if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step):
            self.signum = signal.SIGTERM
        return self.signum

    def _answer(self, signum: int) -> None:
        if not self._answered and signum in (signal.SIGINT, signal.SIGTERM):
            again = "; a second one stops at once, and loses what is not saved" if signum == signal.SIGINT else ""
            tell(f"{signal.Signals(signum).name}: stops after the updates that have begun{again}")
            self._answered = True

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        if signum == signal.SIGINT:
            signal.signal(signum, self._previous[signum])
