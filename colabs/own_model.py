# %% [markdown]
# # These layers in a model of your own
# A layer is called with features [batch, positions, width] and the grid that the positions lie on.

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
import flax.linen as nn
import jax, jax.numpy as jnp
import optax
from flax import nnx

from posattn_jax import Content, GaussianSpan, Positional, PositionalSelfAttention, SirenEncoding
from posattn_jax import nnx as attending

images = jax.random.normal(jax.random.key(0), (2, 6, 8, 3))

# %% [markdown]
# ## In a Linen module


# %%
class Denoiser(nn.Module):
    width: int = 16

    @nn.compact
    def __call__(self, images):
        batch, height, width, channels = images.shape
        pixels = nn.Dense(self.width)(images.reshape(batch, height * width, channels))
        attention = PositionalSelfAttention(
            num_heads=2, terms=(Content(), Positional(SirenEncoding())), span=GaussianSpan(initial_sigma=0.1)
        )
        mixed, intermediates = attention(nn.LayerNorm()(pixels), (height, width), return_intermediates=True)
        return nn.Dense(channels)(pixels + mixed).reshape(images.shape), intermediates["sigma"]


model = Denoiser()
params = model.init(jax.random.key(1), images)["params"]
optimizer = optax.adam(1e-2)
state = optimizer.init(params)


@jax.jit
def update(params, state, rng):
    noisy = images + jax.random.normal(rng, images.shape)
    loss = lambda params: jnp.mean((model.apply({"params": params}, noisy)[0] - images) ** 2)
    value, gradient = jax.value_and_grad(loss)(params)
    changes, state = optimizer.update(gradient, state)
    return optax.apply_updates(params, changes), state, value


for step in range(3 if SMALL else 300):
    params, state, loss = update(params, state, jax.random.key(step))
print(f"loss {loss:.3f}, sigma {model.apply({'params': params}, images)[1]}")

# %% [markdown]
# ## In NNX

# %%
pixels, values = images.reshape(2, 6 * 8, 3), attending.Translution((1, 1))
layer = attending.PositionalSelfAttention(num_heads=1, values=values, rngs=nnx.Rngs(0), example=(pixels, (6, 8)))
outputs = layer(pixels, (6, 8))
print(outputs.shape)

# %% [markdown]
# Equinox, or arrays alone: `docs/importing.md`. What parts there are: `docs/parts.md`.

# %%
# @title The end
# On Colab a session costs compute units while it lasts. What it has written, but on Drive, is gone with it.
END_SESSION = False  # @param {type: "boolean"}
if END_SESSION and "google.colab" in sys.modules:
    from google.colab import runtime

    runtime.unassign()
