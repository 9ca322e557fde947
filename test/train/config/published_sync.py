"""
rLLM's published `sync_config` on the tree that Hydra composes: the other side of the differential test.

    python published_sync.py RLLM_CHECKOUT VERL_WHEEL < sets.json

Reads a list of {"backend": NAME, "set": [OVERRIDE...]}; prints a list of {"values", "warnings"}, or of {"refused"}
where Hydra or the synchronisation raises. Needs hydra-core; what the modules import beyond it is stubbed.
"""

import copy
import importlib.util
import json
import logging
import os
import sys
import tempfile
import types
import warnings
import zipfile

from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

GROUPS = ("model_engine", "hydra.searchpath")
CHECKOUT, WHEEL = map(os.path.abspath, sys.argv[1:3])


def stub(name, **members):
    module = types.ModuleType(name)
    module.__path__ = []
    vars(module).update(members)
    sys.modules[name] = module


def load(name):
    """One module of rLLM by its file, so that its packages are not imported."""
    path = os.path.join(CHECKOUT, *name.split(".")) + ".py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_syncs():
    for name in ("rllm", "rllm.trainer", "rllm.trainer.algorithms", "rllm.workflows", "torch", "verl.utils"):
        stub(name)
    stub("verl", DataProto=None)
    stub("rllm.types", _DEFAULT_TRAJ_NAME="")
    stub("rllm.workflows.workflow", TerminationReason=None)
    balancing = ("calculate_workload", "get_seqlen_balanced_partitions", "log_seqlen_unbalance")
    stub("verl.utils.seqlen_balancing", **dict.fromkeys(balancing))
    load("rllm.trainer.algorithms.config")
    return {backend: load(f"rllm.trainer.{backend}.utils").sync_config for backend in ("verl", "tinker")}


class Caught(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.found = []

    def emit(self, record):
        kind = "conflict" if "conflicts with" in record.msg else "deprecated"
        self.found.append([kind, str(record.args[0])])


def composed(overrides, trees={}):
    """Hydra's composition. Trees without settings are kept: most of the time goes into them."""
    groups = [text for text in overrides if "/" in text.split("=")[0] or text.split("=")[0] in GROUPS]
    if str(groups) not in trees:
        trees[str(groups)] = compose("unified", overrides=groups)
    config = copy.deepcopy(trees[str(groups)])
    parser = OverridesParser.create()
    settings = parser.parse_overrides([text for text in overrides if text not in groups])
    ConfigLoaderImpl._apply_overrides_to_config(settings, config)
    return config


def answer(sync, backend, search, settings):
    overrides = [f"rllm/backend={backend}", search, *settings]
    caught = Caught()
    logger = logging.getLogger(f"rllm.trainer.{backend}.utils")
    logger.handlers, logger.propagate = [caught], False
    try:
        config = composed(overrides)
        sync(config, settings)
        values = OmegaConf.to_container(config, resolve=True)
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    return {"values": values, "warnings": caught.found}


def main():
    warnings.simplefilter("ignore")
    syncs = load_syncs()
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(WHEEL) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if "/trainer/config/" in name])
        search = f"hydra.searchpath=[file://{folder}/verl/trainer/config]"
        with initialize_config_dir(os.path.join(CHECKOUT, "rllm/trainer/config"), version_base=None):
            sets = json.load(sys.stdin)
            answers = [answer(syncs[one["backend"]], one["backend"], search, one["set"]) for one in sets]
    json.dump(answers, sys.stdout)


main()
