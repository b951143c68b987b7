"""How far a run is, for people: lines of at most `WIDTH` columns, and a bar where there is something to draw it on."""

import sys
import time
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from tqdm.auto import tqdm

from posattn_jax.system.doing import tell

WIDTH = 80
BAR_SECONDS, LINE_SECONDS = 2.0, 30.0


class Progress:
    """Epoch, figures and time left: a bar on a terminal and in a notebook, elsewhere a line every `LINE_SECONDS`.

    Args:
      total_steps: the updates of the run.
      step: those done before.
      steps_per_epoch: of them.
      silent: whether nothing is shown.
    """

    def __init__(self, total_steps: int, step: int, steps_per_epoch: int, silent: bool = False):
        self._total, self._per_epoch, self._silent = total_steps, steps_per_epoch, silent
        self._has_bar = not silent and (sys.stderr.isatty() or "ipykernel" in sys.modules)
        self._period = BAR_SECONDS if self._has_bar else LINE_SECONDS
        self._bar: tqdm | None = None
        self._first, self._began = step, time.perf_counter()
        self._shown = self._began

    def begin(self, step: int) -> None:
        """The time that is left is reckoned by what is done from here on."""
        self._first, self._began = step, time.perf_counter()
        if self._has_bar:
            form = {"bar_format": "{desc} |{bar}|", "dynamic_ncols": True, "leave": False}
            self._bar = tqdm(total=self._total, initial=step, desc=f"epoch {step / self._per_epoch:.2f}", **form)

    @property
    def is_due(self) -> bool:
        """Whether it is time to show how far the run is."""
        return not self._silent and time.perf_counter() - self._shown >= self._period

    def show(self, step: int, figures: Sequence[str]) -> None:
        """Draws the bar anew; or prints a line, if one is due."""
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
        """The time that is left if the rest goes on as the run did since it began, evaluations included."""
        done = step - self._first
        if not done:
            return []
        seconds = (time.perf_counter() - self._began) / done * (self._total - step)
        return [f"{tqdm.format_interval(seconds)} left"]


def speed(rate: float, unit: str) -> str:
    """So many a second."""
    return f"{rate:,.0f} {unit}/s" if rate >= 100 else f"{rate:.3g} {unit}/s"


def aligned(head: str, rows: Mapping[str, Sequence[str]]) -> list[str]:
    """Rows of figures, each after its name and with its figures below those of the row above; long ones are broken.

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
