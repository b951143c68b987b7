# %% [markdown]
# # Train on a TPU
# CIFAR-10 with a SIREN and a learned span (Alfons 2022), on all cores of a TPU, or on whatever this runtime has. On
# Colab choose Runtime > Change runtime type > TPU. A run that was interrupted goes on where it was: keep it on Drive.

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

# %% [markdown]
# On a TPU the implementation `fused` is used only where a trial finds that its kernel is right, and the fastest. The
# trials must run before the training has the device. If one fails, `auto` uses other implementations; please send us
# what is printed.

# %%
from posattn_jax.benchmarks import selfcheck
from posattn_jax.system.errors import InputError

try:
    selfcheck.main(["", "--shapes=2d32", "--head_dims=8", "--dtypes=float32", "--half=31"])
except InputError as error:  # no TPU
    print(error)

# %%
# @title Train
ON_DRIVE = False  # @param {type: "boolean"}
EPOCHS = 10.0  # @param {type: "number"}
# The paper: 80 epochs, 32 x 32 pixels (POOL 1), 30 to 40 hours on its GPU.
POOL = 1  # @param {type: "integer"}
import jax

from posattn_jax.run.train import train
from posattn_jax.system.command_line import load_config

runs = pathlib.Path("runs")
if ON_DRIVE and "google.colab" in sys.modules:
    from google.colab import drive

    drive.mount("/content/drive")
    runs = pathlib.Path("/content/drive/MyDrive/posattn_jax")
workdir = runs / "train_on_tpu"
config = load_config("configs/digits.py:tiny" if SMALL else "configs/cifar2d_span.py")
if not SMALL:
    config.data.update(dir="data", download=True, pool=POOL)
    config.train.total_epochs = EPOCHS
config.mesh.data = jax.device_count()  # an update's examples are shared out over all cores
train(config, workdir)  # run the cell again: it goes on

# %% [markdown]
# The spans of all layers, from the first epoch on. More pictures are in the run's folder.

# %%
from IPython.display import Image, display

display(Image(workdir / "figures" / "span_over_epochs.png"))

# %%
# @title The end
# On Colab a session costs compute units while it lasts. What it has written, but on Drive, is gone with it.
END_SESSION = False  # @param {type: "boolean"}
if END_SESSION and "google.colab" in sys.modules:
    from google.colab import runtime

    runtime.unassign()
