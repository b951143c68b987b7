# %% [markdown]
# # Five minutes: a learned attention span
# Trains a small classifier of handwritten digits (8 x 8 pixels, in the package's dependencies) whose spans shrink, and
# shows how far each of its heads looks then, and what that saves. Two to three minutes on two CPU cores.

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

from posattn_jax.run.train import train
from posattn_jax.system.command_line import load_config

config = load_config("configs/digits.py:tiny" if SMALL else "configs/digits.py:short_span")
print(config.model.block.attention.span)

# %% [markdown]
# The same as `python -m posattn_jax.main --config=configs/digits.py:short_span --workdir=runs/digits`. Run the cell
# again after an interruption: it goes on. At the end it measures its updates against those of the same model without a
# span, by turns.

# %%
workdir = pathlib.Path("runs/digits")
train(config, workdir)

# %% [markdown]
# The Gaussian of each layer on the grid of pixels and the boxes that its heads attend to, at first and now. Below it is
# the size of the spans over the epochs.

# %%
for name in ("span_on_grid", "span_over_epochs"):
    display(Image(workdir / "figures" / f"{name}.png"))
