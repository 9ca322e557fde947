"""Trains with rLLM's AgentTrainer and its Tinker backend on a server, and prints what each run logged as JSON by run.

usage: rllm_trainer.py BASE_URL MODEL_FOLDER LOG_FOLDER

rLLM runs as it is, with a workflow of one turn whose reward is the share of the letter "o". The runs: two synchronous steps with
validation, a third one from their checkpoint, two with the gradient and the optimiser step sent together, and asynchronous ones, whose
rollouts go on while a step trains.
"""

import json
import sys

from hydra import compose, initialize_config_module
from rllm.agents.agent import Action
from rllm.data import Dataset
from rllm.rewards.reward_types import RewardOutput
from rllm.trainer.unified_trainer import AgentTrainer
from rllm.utils import Tracking
from rllm.workflows.simple_workflow import SimpleWorkflow

URL, MODEL, LOGS = sys.argv[1:4]
OPENINGS = ["One day", "The dog", "Mia saw", "It was", "Once upon a time", "The sun", "A cat", "Tom and Sue"]

SETTINGS = [
    "rllm/backend=tinker",
    f"tinker_base_url={URL}",
    f"model.name={MODEL}",
    "model.lora_rank=8",
    "training.group_size=4",
    "training.learning_rate=1e-3",
    "training.max_length=256",
    "validation.group_size=1",
    "rollout_engine.renderer_name=role_colon",
    "rollout_engine.bypass_render_with_parser=false",
    "data.max_prompt_length=64",
    "data.max_response_length=12",
    "rllm.data.max_prompt_length=64",
    "rllm.data.max_response_length=12",
    "rllm.data.train_batch_size=2",
    "rllm.data.val_batch_size=2",
    "rllm.rollout.n=4",
    "rllm.workflow.n_parallel_tasks=16",
    "rllm.workflow.retry_limit=1",
    "rllm.trainer.val_before_train=true",
    "rllm.trainer.test_freq=2",
    "rllm.trainer.save_freq=2",
    "rllm.trainer.logger=[console]",
]

ASYNCHRONOUS = [
    "rllm.async_training.enable=true",
    "rllm.async_training.mini_batch_size=2",
    "rllm.async_training.fwd_bwd_group_size=1",
    "rllm.async_training.trigger_parameter_sync_step=1",
    "rllm.workflow.raise_on_error=false",
    "rllm.trainer.val_before_train=false",
]


logged = []


def log(self, data, step, **_):
    # Its loggers' numbers are numpy's, which its own file logger cannot write.
    logged.append({"step": step, **{name: float(value) for name, value in data.items()}})


Tracking.log = log


def letters(task, action):
    text = action.action if isinstance(action, Action) else action
    return RewardOutput(reward=text.count("o") / max(len(text), 1), is_correct="o" in text)


def rows(openings):
    return Dataset([{"question": opening, "data_source": "stories"} for opening in openings])


def run(name, batches, more=(), folder=None):
    logged.clear()
    place = f"training.default_local_dir={LOGS}/{folder or name}"
    settings = [*SETTINGS, place, f"rllm.trainer.total_batches={batches}", *more]
    with initialize_config_module("rllm.trainer.config", version_base=None):
        config = compose("unified", overrides=settings)
    AgentTrainer(
        config=config,
        workflow_class=SimpleWorkflow,
        workflow_args={"reward_function": letters},
        train_dataset=rows(OPENINGS),
        val_dataset=rows(OPENINGS[:2]),
        backend="tinker",
    ).train()
    return list(logged)


def main():
    ran = {
        "synchronous": run("synchronous", 2),
        "resumed": run("resumed", 3, folder="synchronous"),
        "fused": run("fused", 2, ["fuse_forward_backward_and_optim_step=true", "rllm.algorithm.loss_fn=cispo"]),
        "asynchronous": run("asynchronous", 4, [*ASYNCHRONOUS, "rllm.async_training.staleness_threshold=1"]),
        "partial": run(
            "partial",
            4,
            [*ASYNCHRONOUS, "rllm.async_training.staleness_threshold=1", "rllm.async_training.partial_rollout=true"],
        ),
    }
    print(json.dumps(ran))


main()
