"""Packaging. The top-level folders config/ and worker/ travel inside the package as config and worker."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = (ROOT / "digirl_dist" / "__init__.py").read_text().split('__version__ = "')[1].split('"')[0]


def without_relative_links(text: str) -> str:
    """The README where its neighbours are missing, as on PyPI: pictures are left out, links become their words."""
    text = re.sub(r"!\[[^\]]*\]\((?!https:)[^)]*\)\n*", "", text)
    return re.sub(r"\[([^\]]*)\]\((?!https:)[^)]*\)", r"\1", text)


TRAIN = ["torch>=2.6"]  # not of every installation: runs are looked at, and machines prepared, without tensors
MINIWOB = ["miniwob>=1.0"]
MLFLOW = ["mlflow-skinny>=2.10"]
TRACKIO = ["trackio>=0.20"]
WANDB = ["wandb>=0.19"]
ANDROID = ["adbutils>=2.8"]
ATARI = ["ale-py>=0.10"]
AUTOUI = [*TRAIN, "transformers>=5.0"]
JUDGE = ENDPOINT = ["httpx>=0.27"]
VLM = [*TRAIN, "transformers>=5.0", "peft>=0.18"]
OPENENV = ["starlette>=0.45", "uvicorn>=0.34", "websockets>=15"]  # OpenEnv itself is in whatever Python has it
SKYRL = [*OPENENV, "skyrl-gym>=0.4"]
TRL = ["kernels>=0.17; python_version>='3.11'", "trl>=1.16,<1.18; python_version>='3.11'"]
VERIFIERS = [*OPENENV, "httpx>=0.27", "verifiers>=0.4,<0.5; python_version>='3.11'"]
RAY = ["ray>=2.40"]
BRIDGES = [*TRAIN, "rsl-rl-lib>=5.5,<6", "skrl>=2.1,<3", "stable-baselines3>=2.7"]
HUB = ["huggingface_hub>=0.34"]
VIEW = ["starlette>=0.45", "uvicorn>=0.34"]
SERVE = ["anyio>=4.0", *VIEW]
DATA = ["pandas>=2.0"]
DOCS = ["zensical>=0.0.73", "griffelib>=2.0"]
# Flax needs that Python itself.
JAX = ["jax>=0.10; python_version>='3.11'", "flax>=0.12; python_version>='3.11'", "skrl>=2.1,<3"]

setup(
    name="digirl_dist",
    version=VERSION,
    description="Train device-control agents with reinforcement learning on any machines you can ssh to",
    long_description=without_relative_links((ROOT / "README.md").read_text()),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    project_urls={
        "Paper": "https://arxiv.org/abs/2406.11896",
        "DigiRL's own code": "https://github.com/DigiRL-agent/digirl",
    },
    python_requires=">=3.10",
    packages=[*find_packages(include=["digirl_dist", "digirl_dist.*"]), "digirl_dist.config", "digirl_dist.worker"],
    package_dir={"digirl_dist.config": "config", "digirl_dist.worker": "worker"},
    package_data={
        "digirl_dist.config": ["**/*.yaml"],
        "digirl_dist.worker": ["**/*.sh", "*.md"],
        "digirl_dist": ["py.typed", "report/static/*"],
    },
    include_package_data=False,
    install_requires=[
        "argcomplete>=3.1",
        "asyncssh>=2.14",
        "cloudpickle>=3.0",
        "fabric>=3.2",
        "gymnasium>=1.1",
        "hydra-core>=1.3",
        "msgspec>=0.18.6",
        "numpy>=1.26",
        "packaging>=23.0",
        "paramiko>=3.4",
        "pillow>=10.1",
        "psutil>=5.9",
        "pyarrow>=16.0",
        "pyyaml>=6.0",
        "safetensors>=0.4",
        "tensorboard>=2.18",
        "tqdm>=4.66",
        "xxhash>=3.4",
    ],
    extras_require={
        "atari": ATARI,
        "autoui": AUTOUI,
        "bridges": BRIDGES,
        "data": DATA,
        "docs": DOCS,
        "endpoint": ENDPOINT,
        "hub": HUB,
        "jax": JAX,
        "judge": JUDGE,
        "miniwob": MINIWOB,
        "mlflow": MLFLOW,
        "openenv": OPENENV,
        "ray": RAY,
        "serve": SERVE,
        "skyrl": SKYRL,
        "trackio": TRACKIO,
        "train": TRAIN,
        "trl": TRL,
        "verifiers": VERIFIERS,
        "view": VIEW,
        "vlm": VLM,
        "wandb": WANDB,
        "android": ANDROID,
        "dev": [
            *ANDROID,
            *ATARI,
            *AUTOUI,
            *BRIDGES,
            *DATA,
            *DOCS,
            *HUB,
            *JAX,
            *JUDGE,
            *MINIWOB,
            *MLFLOW,
            *OPENENV,
            *RAY,
            *SERVE,
            *SKYRL,
            *TRAIN,
            *TRL,
            *VIEW,
            *VLM,
            *WANDB,
            "axe-core-python",
            "build",
            "datasets",
            "hypothesis",
            "ipykernel",
            "matplotlib>=3.8",
            "minigrid>=3.0",
            "mypy",
            "nbclient",
            "prometheus_client",
            "pytest",
            "pytest-timeout",
            "pytest-xdist>=3.7",
            "ruff",
            "types-paramiko",
            "types-psutil",
            "types-PyYAML",
            "uv",
        ],
    },
    entry_points={"console_scripts": ["digirl-dist = digirl_dist.cli:entry"]},
    keywords="reinforcement learning, device control, GUI agents, distributed training, SSH",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
