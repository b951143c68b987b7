# %% [markdown]
# # Five minutes: a learned attention span
# Trains a small classifier of handwritten digits (8 x 8 pixels, in the package's dependencies), and shows how far each
# of its layers learned to look. Two minutes on two CPU cores.

# %%
# Installs the package where it is missing: from the clone that this notebook lies in; on Colab put the address in.
import importlib.util, os, pathlib, subprocess, sys

if importlib.util.find_spec("posattn_jax") is None:
    REPOSITORY = pathlib.Path("..").resolve().as_uri()  # or "git+https://ADDRESS"
    wanted = f"posattn_jax[train,nlp] @ {REPOSITORY}"  # the jax that is installed stays
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", wanted], check=True)
SMALL = os.environ.get("POSATTN_SMALL") == "1"  # so that the tests can run it in seconds

# %%
import pathlib

from IPython.display import Image, display

from posattn_jax.build.parts import change
from posattn_jax.run.train import train
from posattn_jax.system.command_line import load_config

config = load_config("configs/digits.py:tiny" if SMALL else "configs/digits.py")
print(config.model.block.attention.span)

# %% [markdown]
# The same as `python -m posattn_jax.main --config=configs/digits.py --workdir=runs/digits`. Run the cell again after an
# interruption: it goes on.

# %%
workdir = pathlib.Path("runs/digits")
train(config, workdir)

# %% [markdown]
# The Gaussian of each layer on the grid of pixels, the box that it attends to, and how both came about:

# %%
for name in ("span_on_grid", "span_over_epochs", "learning_curves"):
    display(Image(workdir / "figures" / f"{name}.png"))

# %% [markdown]
# Without the span, everything else being equal:

# %%
change(config, {"model.block.attention.span": None})
train(config, pathlib.Path("runs/digits_without_span"))
