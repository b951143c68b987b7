# %% [markdown]
# # Five minutes: a learned attention span
# Trains a small classifier of handwritten digits (8 x 8 pixels, in the package's dependencies) with learned spans, and
# shows how far each of its heads looks in the end, and what that saves. Two to three minutes on two CPU cores.

# %%
# @title Install and look at the device
# ADDRESS: where pip finds the package, git+https://HOST/OWNER/posattn_jax or a folder; empty in a clone.
ADDRESS = ""  # @param {type: "string"}
EXTRAS = "train,nlp"  # @param {type: "string"}
import importlib.util, os, pathlib, subprocess, sys

if importlib.util.find_spec("posattn_jax") is None:
    clone = pathlib.Path("..").resolve()
    if not ADDRESS and not (clone / "setup.py").exists():
        sys.exit("Fill in ADDRESS above: where pip finds posattn_jax. This notebook lies in no clone.")
    where = pathlib.Path(ADDRESS or clone)
    address = where.resolve().as_uri() if where.exists() else ADDRESS
    wanted = f"posattn_jax[{EXTRAS}] @ {address}"  # the jax that is installed stays
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", wanted], check=True)
SMALL = os.environ.get("POSATTN_SMALL") == "1"  # so that the tests can run it in seconds
LOOK = "import jax; found = jax.devices(); print(found[0].platform, len(found), 'x', found[0].device_kind)"
look = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True).stdout
EXPECT = {
    "cpu": "all works here; a cell that trains takes minutes",
    "gpu": "kernels of our own from Ampere on (not on a T4), after a first call of up to a minute",
    "tpu": "never tried by us: please tell us",
}
print(f"{look.strip()}: {EXPECT[look.split()[0]]}")

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
# The window of each layer on the grid of pixels and the boxes that its heads attend to, at first and now. Below it is
# the size of the spans over the epochs.

# %%
for name in ("span_on_grid", "span_over_epochs"):
    display(Image(workdir / "figures" / f"{name}.png"))

# %%
# @title The end
# On Colab a session costs compute units while it lasts. What it has written, but on Drive, is gone with it.
END_SESSION = False  # @param {type: "boolean"}
if END_SESSION and "google.colab" in sys.modules:
    from google.colab import runtime

    runtime.unassign()
