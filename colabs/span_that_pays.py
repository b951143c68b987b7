# %% [markdown]
# # A learned span that pays
# Attention within a span needs to compute only what lies inside. Here the implementations of the same operation are
# timed on your device: `dense` computes all pairs, `tiled` follows the span, `auto` takes the faster.

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

from posattn_jax import relative_attention, span_size
from posattn_jax.benchmarks import attention

print(jax.devices())

# %% [markdown]
# How large the box is that a span of sigma attends to, of 127 offsets a dimension:

# %%
for sigma in (0.02, 0.1, 0.3):
    print(sigma, span_size(jnp.array([sigma, sigma]), threshold=0.1, grid_shape=(64, 64)))

# %% [markdown]
# Sigma is an array like any other: one compiled program serves every span that training comes through.

# %%
grid = (8, 8) if SMALL else (64, 64)
keys = jax.random.split(jax.random.key(0), 3)
query, key, value = (jax.random.normal(each, (2, grid[0] * grid[1], 8, 8)) for each in keys)
attend = jax.jit(lambda sigma: relative_attention(query, key, value, grid_shape=grid, sigma=sigma))
print(attend(jnp.array([0.1, 0.1])).shape, attend(jnp.array([0.3, 0.1])).shape)

# %% [markdown]
# Time and temporary memory, forward and backward; "roofline" is what the pairs inside the span take at
# the device's speed. On a GPU or TPU features are bfloat16, 64 a head, and `fused` is timed too, where it has a kernel
# for the device. What is skipped is named, with the reason. In a clone, `launch/gpu_check.sh` and `launch/tpu_check.sh`
# check values as well: please send us the results.

# %%
out = pathlib.Path("runs/span_that_pays")
size = (
    ["--shapes=2d8", "--spans=.5", "--seconds=.1"] if SMALL else ["--shapes=2d64", "--spans=.05,.12,.5", "--seconds=20"]
)
if jax.default_backend() == "cpu":
    size += ["--implementations=auto,dense,tiled"]
else:
    size += ["--implementations=auto,fused,dense,tiled", "--head_dim=64", "--dtype=bfloat16"]
attention.run(["", *size, "--backward", f"--out={out}"])

# %%
for name in ("time", "memory"):
    display(Image(out / f"{name}.png"))

# %%
# @title The end
# On Colab a session costs compute units while it lasts. What it has written, but on Drive, is gone with it.
END_SESSION = False  # @param {type: "boolean"}
if END_SESSION and "google.colab" in sys.modules:
    from google.colab import runtime

    runtime.unassign()
