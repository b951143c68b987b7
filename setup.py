"""Packaging of posattn_jax."""

import pathlib
import re

from setuptools import find_packages, setup

# The public repository, such as https://github.com/OWNER/posattn_jax; empty while there is none. After a change of it:
# python launch/address.py
ADDRESS = ""
PAGES = {"Source": "", "Changelog": "/blob/main/CHANGELOG.md", "Citation": "/blob/main/CITATION.cff"}

# No version is capped: an environment keeps what it has. launch/versions.sh tries the least of each, and the newest.
JAX = "jax>=0.7.2"
CORE = [JAX, "jaxlib>=0.7.2", "flax>=0.11.2", "jaxtyping>=0.3", "numpy>=2", "absl-py>=1.4", "ml_collections>=1"]
TRAIN = [
    "optax>=0.2.8",
    "orbax-checkpoint>=0.12.4",
    "grain>=0.2.18",
    "scipy>=1.13",
    "scikit-learn>=1.5",
    "matplotlib>=3.9",
    "tensorboardX>=2.6.5",
    "tqdm>=4.66",
    "rich>=13",
    "submitit>=1.5",
    "markdown>=3.5",
    "pooch>=1.8",
    "pillow>=10.1",
    "sentencepiece>=0.2",
]
TFDS = ["tensorflow-datasets>=4.9.10", "importlib_resources>=6"]  # the first imports the second without declaring it
NLP = ["sacrebleu>=2.4", "sacremoses>=0.2"]  # of translation
EXPORT = ["flatbuffers>=24.3.25"]
CONVERT = ["safetensors>=0.5", "tokenizers>=0.21"]  # weights of others
WANDB = ["wandb>=0.18"]
DOCS = ["furo>=2024.8", "myst-parser>=4", "sphinx>=8"]
# Compilers for devices that are not there, as docs/accelerators.md has it.
TPU_AOT = ["jax==0.10.2", "libtpu==0.0.52"]
GPU_AOT = ["jax==0.10.2", "jax-cuda12-plugin==0.10.2", "jax-cuda12-pjrt==0.10.2"]
GPU_AOT += ["nvidia-cuda-nvcc==13.0.88", "nvidia-cuda-nvdisasm==13.5.37", "nvidia-cuda-nvrtc==13.0.88"]
NOTEBOOKS = ["ipykernel>=6.29", "jupytext>=1.16", "nbmake>=1.5"]
TESTS = ["beartype>=0.19", "hypothesis>=6.100", "pytest>=8", "pytest-xdist>=3.6", *TRAIN, *EXPORT]

CONFIGS = {
    f"posattn_jax.packaged.{name.replace('/', '.')}": name for name in ("configs", "configs/lib", "configs/studies")
}


def readme():
    """The README as an index shows it, outside of the repository: with the address, if there is one, in its links."""
    text = pathlib.Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    for links, kind in ((r"(!\[[^\]]*\]\()", "raw"), (r"(\]\()", "blob")):
        text = re.sub(rf"{links}(?!https?:|#)", rf"\1{ADDRESS}/{kind}/main/", text) if ADDRESS else text
    return text


setup(
    name="posattn_jax",
    version="0.2.0",
    description="Attention that knows where things are: four papers as replaceable parts of one JAX/Flax layer",
    long_description=readme(),
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    license_files=["LICENSE", "CITATION.cff"],
    author="The posattn_jax authors",
    project_urls={name: f"{ADDRESS}{page}" for name, page in PAGES.items() if ADDRESS},
    keywords=["attention", "relative positions", "attention span", "transformers", "JAX", "Flax"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    # configs/ is imported as `configs`: in a folder of its own, which command_line.py adds to the path, it meets no
    # other project's folder of that name.
    packages=[*find_packages(include=["posattn_jax", "posattn_jax.*"]), *CONFIGS],
    package_dir=CONFIGS,
    package_data={
        "posattn_jax": [
            "py.typed",
            "analysis/*.html",
            "analysis/*.js",
            "analysis/*.css",
            "ops/attention/cpu/*.h",  # compiled where it runs
            "ops/attention/cpu/*.cc",
            "ops/attention/cuda/*.h",
            "ops/attention/cuda/*.cc",
            "ops/attention/cuda/*.cu",
        ]
    },
    entry_points={"console_scripts": ["posattn = posattn_jax.main:command"]},
    python_requires=">=3.11",
    install_requires=CORE,
    extras_require={
        "train": TRAIN,
        "slurm": ["submitit>=1.5"],
        "tfds": TFDS,
        "nlp": NLP,
        "export": EXPORT,
        "convert": CONVERT,
        "wandb": WANDB,
        "all": [*TRAIN, *TFDS, *NLP, *EXPORT, *CONVERT, *WANDB],
        "cuda12": ["jax[cuda12]>=0.7.2"],
        "cuda13": ["jax[cuda13]>=0.7.2"],
        "tpu": ["jax[tpu]>=0.7.2"],
        "tpu-aot": TPU_AOT,
        "gpu-aot": GPU_AOT,
        "prepare": [*TFDS, "tensorflow-cpu>=2.21"],
        "colab": [*TRAIN, *NLP, *NOTEBOOKS],
        "docs": DOCS,
        "versions": TESTS,  # launch/versions.sh
        "test": [
            "build>=1.2",
            "chex>=0.1.90",
            "equinox>=0.13",
            "import-linter>=2.1",
            "pyright[nodejs]>=1.1.390",
            "ruff>=0.9",
            *TFDS,
            *NLP,
            *CONVERT,
            *DOCS,
            *NOTEBOOKS,
            *TESTS,
        ],
    },
)
