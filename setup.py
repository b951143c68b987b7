"""Packaging of posattn_jax."""

import pathlib

from setuptools import find_packages, setup

DOCS = ["furo>=2024.8", "myst-parser>=4", "sphinx>=8"]
NOTEBOOKS = ["ipykernel>=6.29", "jupytext>=1.16", "nbmake>=1.5"]
EXPORT = ["flatbuffers>=24"]
TESTS = ["beartype>=0.19", "hypothesis>=6.100", "pytest>=8", "pytest-xdist>=3.6", *EXPORT]

setup(
    name="posattn_jax",
    version="0.1.0",
    description="Attention that knows where things are: four papers as replaceable parts of one JAX/Flax layer",
    long_description=pathlib.Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    license_files=["LICENSE", "CITATION.cff"],
    author="The posattn_jax authors",
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
    packages=[*find_packages(include=["posattn_jax", "posattn_jax.*"]), "posattn_jax.packaged.configs"],
    package_dir={"posattn_jax.packaged.configs": "configs"},
    package_data={
        "posattn_jax": [
            "py.typed",
            "analysis/*.html",
            "analysis/*.js",
            "analysis/*.css",
            "ops/attention/native/*.h",  # compiled where it runs
            "ops/attention/native/*.cc",
        ]
    },
    entry_points={"console_scripts": ["posattn = posattn_jax.main:command"]},
    python_requires=">=3.11",
    install_requires=[
        "jax>=0.10.2,<0.13",
        "flax>=0.12.8,<0.13",
        "optax>=0.2.8,<0.3",
        "orbax-checkpoint>=0.12.8,<0.13",
        "grain>=0.2.18,<0.3",
        "chex>=0.1.92",
        "ml_collections>=1.1",
        "absl-py>=2.3.1",
        "jaxtyping>=0.3",
        "numpy>=2",
        "scipy>=1.14",
        "scikit-learn>=1.5",
        "matplotlib>=3.9",
        "tensorboardX>=2.6.5",
        "tqdm>=4.66",
        "rich>=13",
        "submitit>=1.5",
        "markdown>=3.5",
        "pooch>=1.8",
        "tensorflow-datasets==4.9.10",
        "importlib_resources>=6",  # tensorflow-datasets imports it without declaring it
        "pillow>=10.1",
    ],
    extras_require={
        "cuda": ["jax[cuda13]>=0.10.2,<0.13"],
        "tpu": ["jax[tpu]>=0.10.2,<0.13"],
        "prepare": ["tensorflow-cpu>=2.21"],
        "nlp": ["sentencepiece>=0.2", "sacrebleu>=2.4"],
        "export": EXPORT,
        "convert": ["safetensors>=0.5", "tokenizers>=0.21"],
        "wandb": ["wandb>=0.18"],
        "colab": NOTEBOOKS,
        "docs": DOCS,
        "versions": TESTS,  # launch/versions.sh
        "test": [
            "build>=1.2",
            "equinox>=0.13",
            "import-linter>=2.1",
            "pyright[nodejs]>=1.1.390",
            "sacrebleu>=2.4",
            "safetensors>=0.5",
            "sentencepiece>=0.2",
            "tokenizers>=0.21",
            "ruff>=0.9",
            *DOCS,
            *NOTEBOOKS,
            *TESTS,
        ],
    },
)
