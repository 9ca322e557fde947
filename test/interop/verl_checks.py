"""
verl's own code on what a run sends to it, on a CPU and without Ray. Reads a request as JSON from the file argv[1] and writes
the results to argv[2]. The working directory is that of a job: rows, verl_reward.py, verl_agent.py, agent.yaml.
"""

import asyncio
import json
import os
import sys
import warnings
from types import SimpleNamespace

warnings.filterwarnings("ignore")

import grpu_service  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from hydra import compose, initialize_config_module  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker  # noqa: E402
from verl.experimental.reward_loop import RewardLoopWorker  # noqa: E402
from verl.protocol import DataProto  # noqa: E402
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY  # noqa: E402
from verl.trainer.ppo.utils import need_critic, need_reference_policy  # noqa: E402
from verl.utils import hf_tokenizer  # noqa: E402
from verl.utils.config import validate_config  # noqa: E402
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn  # noqa: E402
from verl.workers.rollout.replica import TokenOutput  # noqa: E402


def composed(overrides):
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=overrides)


def config_check(overrides):
    config = composed(overrides)
    try:
        validate_config(config, need_reference_policy(config), need_critic(config))
        refusal = None
    except Exception as error:
        refusal = f"{type(error).__name__}: {error}"
    return {"config": OmegaConf.to_container(config, resolve=True), "refusal": refusal}


def dataset_of(config, files):
    tokenizer = hf_tokenizer(config.actor_rollout_ref.model.path)
    return RLHFDataset(data_files=files, tokenizer=tokenizer, config=config.data, processor=None)


def rows_check(config):
    rows = []
    for files in (config.data.train_files, config.data.val_files):
        for row in collate_fn(list(dataset_of(config, files)))["extra_info"]:
            rows.append(row)
    first = dataset_of(config, config.data.train_files)[0]
    first.pop("dummy_tensor")
    return {"rows": rows, "first": first}


async def rewards_check(config, items):
    """One concurrent call a response, as rollouts make them."""
    worker = RewardLoopWorker(config)
    tokenizer = worker.input_tokenizer

    async def score(item):
        ids = torch.tensor([tokenizer.encode(item["text"], add_special_tokens=False)])
        tensors = {"responses": ids, "attention_mask": torch.ones_like(ids)}
        extra = {"split": item["split"], "index": np.int64(item["task"]), "grpu_task": np.int64(item["task"])}
        columns = {
            "data_source": np.array(["sums"], dtype=object),
            "reward_model": np.array([{"style": "rule", "ground_truth": ""}], dtype=object),
            "extra_info": np.array([extra], dtype=object),
            "__num_turns__": np.array([2]),
        }
        try:
            return await worker.compute_score(DataProto.from_dict(tensors=tensors, non_tensors=columns))
        except Exception as error:
            return {"error": str(error)}

    return await asyncio.gather(*(score(item) for item in items))


class FakeServers:
    """Generation servers that answer each prompt with tokens made of it, and remember what they were asked."""

    def __init__(self):
        self.asked = []

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        self.asked.append({"request_id": request_id, "prompt_ids": list(prompt_ids), "sampling_params": sampling_params})
        count = min(5, sampling_params["max_tokens"])
        return TokenOutput(
            token_ids=[3 + (sum(prompt_ids) * 31 + i) % 90 for i in range(count)],
            log_probs=[-0.5 - i / 8 for i in range(count)],
            stop_reason="completed" if count == 5 else "length",
            extra_fields={"global_steps": 6, "min_global_steps": 6, "max_global_steps": 7},
        )


def agent_worker(config, cls, servers):
    # It scores nothing: rewards come with the trajectories.
    return cls(config, servers, None, [SimpleNamespace(compute_score=SimpleNamespace(remote=None))])


def columns_of(config):
    rows = collate_fn(list(dataset_of(config, config.data.train_files)))
    rows.pop("dummy_tensor")
    return rows


async def agent_check(config):
    """The agent loop as the trainers of 0.8 and the older one of 0.9 call it: one row a rollout, padded."""
    servers, rows = FakeServers(), columns_of(config)
    batch = DataProto.from_dict(tensors={"dummy": torch.zeros(len(rows["index"]), 1)}, non_tensors=rows)
    batch.meta_info = {"global_steps": 5, "validate": False}
    made = await agent_worker(config, AgentLoopWorker, servers).generate_sequences(batch)
    tensors = {name: made.batch[name].tolist() for name in made.batch.keys()}
    columns = {name: [str(value) for value in values] for name, values in made.non_tensor_batch.items()}
    return {"tensors": tensors, "columns": columns, "asked": servers.asked, "keys": made.meta_info["reward_extra_keys"]}


async def v1_check(config):
    """The agent loop as the V1 trainer calls it: rows go to TransferQueue, which is a list here."""
    from verl.trainer.ppo.v1 import agent_loop_tq
    from verl.utils import tensordict_utils

    stored, states = [], {}

    async def put(key, tag, **_):
        states[key] = tag["status"]

    async def put_batch(keys, fields, tags, **_):
        for key, row, tag in zip(keys, fields, tags):
            row = {name: row[name] for name in row.keys()}
            lists = {name: value.tolist() for name, value in row.items() if isinstance(value, torch.Tensor)}
            extra = row["extra_fields"]
            stored.append({"key": key, "tag": tag, "extra": extra if isinstance(extra, dict) else extra.data, **lists})

    agent_loop_tq.tq = SimpleNamespace(init=lambda: None, async_kv_put=put, async_kv_batch_put=put_batch)
    rows = columns_of(config)
    rows["uid"] = np.array([f"u{i}" for i in rows["index"]], dtype=object)
    batch = tensordict_utils.get_tensordict(rows)
    tensordict_utils.assign_non_tensor_data(batch, "global_steps", 5)
    worker = agent_worker(config, agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class, FakeServers())
    await worker.generate_sequences(batch)
    await asyncio.gather(*worker.background_tasks)
    return {"stored": stored, "states": states}


async def odd_check(config, cases):
    """Trajectories at the edges of what verl takes, and generation servers that fail."""
    from verl_agent import GrpuAgentLoop

    limits, tokenizer = config.actor_rollout_ref.rollout, SimpleNamespace(eos_token_id=2)
    wrapped, said = SimpleNamespace(config=config), []
    for case in cases:
        try:
            said.append(GrpuAgentLoop(wrapped, None, tokenizer).output(case).model_dump())
        except RuntimeError as error:
            said.append(str(error))

    async def fail(**_):
        raise ValueError("the engine has gone")

    row = {"extra_info": {"split": "train", "index": 0, "grpu_task": 0}}
    try:
        await GrpuAgentLoop(wrapped, SimpleNamespace(generate=fail), tokenizer).run({"temperature": 1.0}, **row)
    except ValueError as error:
        said.append(f"{error}, at most {limits.response_length} tokens")
    return said


async def refusals_check():
    """What a worker says of a service that refuses it, or is not there."""
    said, usual = [], dict(os.environ)
    for changed in ({"GRPU_TOKEN": "another-token-of-a-run"}, {"GRPU_URL": "http://127.0.0.1:1"}):
        os.environ.update(changed)
        grpu_service.TRIES = 2
        try:
            await grpu_service.call("GET", "/health")
        except RuntimeError as error:
            said.append(str(error))
        os.environ.update(usual)
    return said


def main(request):
    result = {"configs": [config_check(overrides) for overrides in request["configs"]]}
    result["estimators"] = sorted(ADV_ESTIMATOR_REGISTRY)
    result["losses"] = sorted(POLICY_LOSS_REGISTRY)
    run, agent = (composed(request[name]) for name in ("run", "agent"))
    OmegaConf.resolve(run)
    OmegaConf.resolve(agent)
    result["data"] = rows_check(run)
    grpu_service.SECONDS = request["seconds"]
    os.environ["GRPU_URL"] = request["urls"]["rewards"]
    result["rewards"] = asyncio.run(rewards_check(run, request["rewards"]))
    os.environ["GRPU_URL"] = request["urls"]["agents"]
    result["agent"] = asyncio.run(agent_check(agent))
    if "v1" in agent.trainer:
        result["v1"] = asyncio.run(v1_check(agent))
    result["odd"] = asyncio.run(odd_check(agent, request["odd"]))
    result["refusals"] = asyncio.run(refusals_check())
    return result


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        request = json.load(file)
    outcome = main(request)
    with open(sys.argv[2], "w") as file:
        json.dump(outcome, file, default=str)
