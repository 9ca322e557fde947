"""
The configuration trees of verl, composed by Hydra from a published wheel: JSON, interpolations unresolved.

    pip install hydra-core
    pip download --no-deps verl==0.9.1
    python verl_trees.py verl-0.9.1-py3-none-any.whl [OVERRIDE...]

Prints {"<model engine>": {tree}} for every engine that `ppo_trainer` has; with overrides, and with --resolve,
what they make of it.
"""

import json
import os
import sys
import tempfile
import zipfile

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

FOLDER = "verl/trainer/config"


def unpack(wheel, folder):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(FOLDER + "/") and name.endswith(".yaml")]
        archive.extractall(folder, names)
    return os.path.join(folder, FOLDER)


def trees(wheel, overrides, resolve):
    with tempfile.TemporaryDirectory() as folder:
        configs = unpack(wheel, folder)
        engines = sorted(name[: -len(".yaml")] for name in os.listdir(os.path.join(configs, "model_engine")))
        with initialize_config_dir(configs, version_base=None):
            for engine in engines:
                config = compose("ppo_trainer", overrides=[f"model_engine={engine}", *overrides])
                yield engine, OmegaConf.to_container(config, resolve=resolve)


if __name__ == "__main__":
    wheel, *rest = sys.argv[1:]
    overrides = [text for text in rest if text != "--resolve"]
    json.dump(dict(trees(wheel, overrides, "--resolve" in rest)), sys.stdout)
