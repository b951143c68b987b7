"""Ctrl-C and SIGTERM end a run between two steps, after it has saved."""

import signal
from types import FrameType


class Interrupted(Exception):
    """The run was asked to stop, has saved, and can be resumed."""

    def __init__(self, signum: int, step: int):
        super().__init__(
            f"stopped by {signal.Signals(signum).name} at step {step}; saved: the same command continues from there"
        )
        self.exit_code = 128 + signum


class Interruption:
    """While active, the first SIGINT or SIGTERM is noted in `signum`; a second one acts at once."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self):
        self.signum: int | None = None

    def __enter__(self) -> "Interruption":
        self._previous = {signum: signal.signal(signum, self._note) for signum in self.SIGNALS}
        return self

    def __exit__(self, *_) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        signal.signal(signum, self._previous[signum])
