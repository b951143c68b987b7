"""Shows the progress of a run: lines of at most `WIDTH` columns, and a bar on a terminal or in a notebook."""

import sys
import time
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from tqdm.auto import tqdm

from posattn_jax.system.doing import tell

WIDTH = 80
BAR_SECONDS, LINE_SECONDS = 2.0, 30.0


class Progress:
    """Shows epoch, figures and time left: as a bar on a terminal or in a notebook, else a line per `LINE_SECONDS`.

    Args:
      total_steps: the updates of the run.
      step: the updates already done.
      steps_per_epoch: the updates of an epoch.
      silent: whether to show nothing.
    """

    def __init__(self, total_steps: int, step: int, steps_per_epoch: int, silent: bool = False):
        self._total, self._per_epoch, self._silent = total_steps, steps_per_epoch, silent
        self._has_bar = not silent and (sys.stderr.isatty() or "ipykernel" in sys.modules)
        self._period = BAR_SECONDS if self._has_bar else LINE_SECONDS
        self._bar: tqdm | None = None
        self._first, self._began = step, time.perf_counter()
        self._shown = self._began

    def begin(self, step: int) -> None:
        """Starts the bar. From now on, the speed of the updates predicts the time left."""
        self._first, self._began = step, time.perf_counter()
        if self._has_bar:
            form = {"bar_format": "{desc} |{bar}|", "dynamic_ncols": True, "leave": False}
            self._bar = tqdm(total=self._total, initial=step, desc=f"epoch {step / self._per_epoch:.2f}", **form)

    @property
    def is_due(self) -> bool:
        """Whether it is time to show the progress."""
        return not self._silent and time.perf_counter() - self._shown >= self._period

    def show(self, step: int, figures: Sequence[str]) -> None:
        """Redraws the bar or, without a bar, prints a line if one is due."""
        epochs = f"epoch {step / self._per_epoch:.2f}/{self._total / self._per_epoch:.4g}"
        text = "  ".join((epochs, *figures, *self._left(step)))
        if self._bar is not None:
            self._bar.n = step
            self._bar.set_description_str(text)
        elif self.is_due:
            tell(text)
        else:
            return
        self._shown = time.perf_counter()

    def lines(self, lines: Sequence[str]) -> None:
        """Prints lines, above the bar."""
        for line in () if self._silent else lines:
            tell(line)
        self._shown = time.perf_counter()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def _left(self, step: int) -> list[str]:
        """The time left at the mean speed since `begin`, evaluations included."""
        done = step - self._first
        if not done:
            return []
        seconds = (time.perf_counter() - self._began) / done * (self._total - step)
        return [f"{tqdm.format_interval(seconds)} left"]


def speed(rate: float, unit: str) -> str:
    """A rate with its unit, per second."""
    return f"{rate:,.0f} {unit}/s" if rate >= 100 else f"{rate:.3g} {unit}/s"


def aligned(head: str, rows: Mapping[str, Sequence[str]]) -> list[str]:
    """Lines of a table: each row has its name and its figures, aligned in columns. Rows wider than `WIDTH` are broken.

    Example:
      >>> print("\\n".join(aligned("epoch 2", {"train": ["loss 0.5"], "validation": ["loss 0.75", "accuracy 0.5"]})))
      epoch 2  train       loss 0.5
               validation  loss 0.75  accuracy 0.5
    """
    names = max(map(len, rows))
    columns = zip_longest(*rows.values(), fillvalue="")
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for name, figures in rows.items():
        line = start = f"{head}  {name:<{names}}"
        for figure, width in zip(figures, widths, strict=False):
            if len(line) + 2 + len(figure) > WIDTH:
                lines.append(line.rstrip())
                line = " " * len(start)
            line += f"  {figure:<{width}}"
        lines.append(line.rstrip())
        head = " " * len(head)
    return lines
