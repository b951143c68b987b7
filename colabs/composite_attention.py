# %% [markdown]
# # Composite attention and its kernels
# Relative positions in attention are convolutions: a trained number for every offset is a *fixed* one, a trained vector
# for every offset, met by the query, a *dynamic* one. Composite attention has both (Chang 2021).

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

import jax, jax.numpy as jnp
from IPython.display import Image, display

from posattn_jax import Content, KernelEncoding, Positional, PositionalSelfAttention, RelativeBias
from posattn_jax.run.train import train
from posattn_jax.system.command_line import load_config

# %%
fixed, dynamic = RelativeBias((3, 3)), Positional(KernelEncoding((3, 3)))
layer = PositionalSelfAttention(num_heads=2, terms=(Content(), fixed, dynamic))
pixels = jnp.ones((1, 8 * 8, 16))
variables = layer.init(jax.random.key(0), pixels, (8, 8))
_, intermediates = layer.apply(variables, pixels, (8, 8), return_intermediates=True)
print({name: array.shape for name, array in intermediates.items()})

# %% [markdown]
# Trained on digits, with kernels of all offsets. On text: `configs/bert.py:tiny,composite`.

# %%
config = load_config("configs/digits.py:composite")
if SMALL:
    config.train.update(total_epochs=0.0, total_steps=2)
    config.model.update(num_blocks=1, width=8)
    config.model.block.mlp_dim = 16
    config.model.block.attention.num_heads = 2
workdir = pathlib.Path("runs/digits_composite")
train(config, workdir)

# %% [markdown]
# What the heads of every layer learned to look at, whatever the digit:

# %%
display(Image(workdir / "figures" / "fixed_kernels.png"))

# %%
# @title The end
# On Colab a session costs compute units while it lasts. What it has written, but on Drive, is gone with it.
END_SESSION = False  # @param {type: "boolean"}
if END_SESSION and "google.colab" in sys.modules:
    from google.colab import runtime

    runtime.unassign()
