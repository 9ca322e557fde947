"""
Trinity-RFT's own code on what a run sends to it, on a CPU and without Ray. Reads a request as JSON from the file argv[1] and
writes the results to argv[2]. The working directory is that of a job: trinity.yaml, tasks/, the workflows.
"""

import asyncio
import json
import sys
from types import SimpleNamespace

import torch
from trinity.common.config import InferenceModelConfig, load_config
from trinity.common.experience import Experience
from trinity.common.models.allocator import Allocator
from trinity.common.models.model import ModelWrapper
from trinity.explorer.workflow_runner import WorkflowRunner


def config_check(path, root):
    """The configuration after all of Trinity's validators, or the first error."""
    try:
        config = load_config(path)
        config.checkpoint_root_dir = root
        config.check_and_update()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "mode": config.mode,
        "trainer_gpus": config.cluster.trainer_gpu_num,
        "rollout_gpus": config.cluster.rollout_gpu_num,
        "train_batch_size": config.buffer.train_batch_size,
        "total_steps": config.buffer.total_steps,
        "sync": [config.synchronizer.sync_interval, config.synchronizer.sync_offset, str(config.synchronizer.sync_style)],
        "algorithm": [config.algorithm.algorithm_type, config.algorithm.kl_loss_fn, config.algorithm.policy_loss_fn],
        "policy_loss_args": config.algorithm.policy_loss_fn_args,
        "lr": config.algorithm.optimizer.lr,
    }


class Remote:
    """A method as Ray offers it."""

    def __init__(self, function):
        self.remote = function


class FakeEngine:
    """Stands in for vLLM: `draw` of verl_run.ts for token ids, a scripted reply for a chat."""

    def __init__(self, replies):
        self.replies, self.asked = replies, []
        for name in ("chat", "get_model_version", "_generate_internal"):
            setattr(self, name, Remote(getattr(self, f"{name.strip('_')}_")))

    async def get_model_version_(self):
        return 7

    async def chat_(self, messages, lora_request=None, n=1, **params):
        self.asked.append({"messages": messages, "n": n, **params})
        return [
            Experience(tokens=[5, 6, 7 + i], prompt_length=2, logprobs=[-0.25], response_text=self.replies[i % len(self.replies)])
            for i in range(n)
        ]

    async def generate_internal_(self, prompt, **params):
        self.asked.append(params)
        ids, most = prompt["prompt_token_ids"], params["max_tokens"]
        count, total = min(5, most), sum(ids) * 31
        tokens = [3 + (total + i) % 90 for i in range(count)]
        # The sampled token is not the first of each dict where another is likelier.
        tops = [{1: SimpleNamespace(logprob=-9.0), token: SimpleNamespace(logprob=-0.5 - i / 8)} for i, token in enumerate(tokens)]
        reply = SimpleNamespace(token_ids=tokens, logprobs=tops, finish_reason="stop" if count == 5 else "length")
        return SimpleNamespace(outputs=[reply])


def tasks_of(taskset, count):
    from trinity.buffer.reader.file_reader import TaskFileReader

    reader = TaskFileReader(taskset)
    return asyncio.run(reader.read(batch_size=count))


def told(experience):
    return {
        "tokens": experience.tokens.tolist(),
        "prompt_length": experience.prompt_length,
        "mask": [int(each) for each in experience.action_mask],
        "logprobs": experience.logprobs.tolist(),
        "reward": experience.reward,
        "run": experience.eid.run,
        "metrics": experience.metrics,
    }


async def run_tasks(config, tasks, engine, times):
    limits = {name: getattr(config.model, name) for name in ("max_prompt_tokens", "max_response_tokens")}
    model = ModelWrapper(model=engine, config=InferenceModelConfig(model_path=config.model.model_path, **limits))
    Allocator.get_model = lambda *_, **__: model
    runner = WorkflowRunner(config, rollout_model_id=0, runner_id=0)
    results = []
    for i, task in enumerate(tasks):
        task.batch_id, task.task_id = 3, i
        status, payload = await runner.run_task(task, batch_id="3", repeat_times=times)
        rows = Experience.deserialize_many(payload) if payload else []
        message = status.message.splitlines()[-1] if status.message else None
        results.append({"completed": status.completed_runs, "message": message, "rows": [told(row) for row in rows]})
    return results


def main(asked):
    checks = [config_check(path, asked["root"]) for path in asked["configs"]]
    config = load_config("trinity.yaml")
    config.checkpoint_root_dir = asked["root"]
    config.check_and_update()
    [taskset] = config.buffer.explorer_input.tasksets
    tasks = tasks_of(taskset, asked["tasks"])
    engine = FakeEngine(asked["replies"])
    results = asyncio.run(run_tasks(config, tasks, engine, asked["times"]))
    raw = [task.raw_task["extra_info"]["grpu_task"] for task in tasks]
    return {"configs": checks, "tasks": raw, "results": results, "asked": engine.asked}


if __name__ == "__main__":
    torch.set_num_threads(1)
    with open(sys.argv[1]) as file:
        answer = main(json.load(file))
    with open(sys.argv[2], "w") as file:
        json.dump(answer, file)
