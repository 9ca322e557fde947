"""The agents of a grpu run as a workflow of Trinity-RFT 0.6: `default_workflow_type: trinity_agent.GrpuAgent`."""

import asyncio
import contextlib
import uuid
from collections import defaultdict
from dataclasses import asdict
from itertools import count

from grpu_service import call
from trinity.common.experience import Experience
from trinity.common.workflows.workflow import Workflow
from trinity_reward import judged

attempts = defaultdict(count)  # by batch and task


class GrpuAgent(Workflow):
    """One rollout: the service says what to generate, and at the end which tokens to train on."""

    is_async = True

    async def run_async(self):
        task, info, key, seq = self.task, self.task.raw_task["extra_info"], uuid.uuid4().hex, 0
        params, limits, batch = asdict(task.rollout_args), self.model.config, str(task.batch_id).split("/")[0]
        body = {
            "task": {"split": info["split"], "index": info["grpu_task"]},
            "rollout_index": next(attempts[task.batch_id, task.task_id]),
            "step": int(batch) if batch.isdigit() else -1,
            "validate": bool(task.is_eval),
            "sampling_params": params,
            "max_prompt_length": limits.max_prompt_tokens,
            "max_response_length": limits.max_response_tokens,
            "takes": "one",  # a group of Trinity's has one of each rollout
        }
        while True:
            answer = await call("POST", "/rollouts", {"id": key, "seq": seq, **body})
            if answer["action"] == "done":
                [trajectory] = answer["trajectories"]
                return [self.experience(trajectory)]
            if answer["action"] == "error":
                raise RuntimeError(f"The rollout of {info['split']} task {info['grpu_task']} failed: {answer['message']}")
            try:
                results = await asyncio.gather(*(self.generate(params, each) for each in answer.get("calls", [])))
            except BaseException:
                with contextlib.suppress(Exception):  # the first error is the one to report
                    await call("DELETE", f"/rollouts/{key}")
                raise
            body, seq = {"results": results}, seq + 1

    async def generate(self, usual, wanted):
        """Asks the engine behind the wrapper by token ids: the wrapper's own functions would encode text again."""
        params = {**usual, **wanted.get("sampling_params", {}), "n": 1, "logprobs": 0}
        if self.model.enable_lora:
            params["lora_request"] = await self.model.get_lora_request_async()
        out = await self.model.model._generate_internal.remote(prompt={"prompt_token_ids": wanted["prompt_ids"]}, **params)
        if hasattr(out, "sequences"):  # the engine tinker
            [reply] = out.sequences
            ids, log_probs, stop = list(reply.tokens), list(reply.logprobs), reply.stop_reason
        else:  # vllm
            [reply] = out.outputs
            ids, stop = list(reply.token_ids), reply.finish_reason
            log_probs = [float(each[token].logprob) for token, each in zip(ids, reply.logprobs, strict=True)]
        stop = "aborted" if stop == "abort" else str(stop)
        return {"call": wanted["call"], "token_ids": ids, "log_probs": log_probs, "stop_reason": stop}

    def experience(self, it):
        if len(it["prompt_ids"]) > self.model.config.max_prompt_tokens:
            most = self.model.config.max_prompt_tokens
            raise RuntimeError(f"A prompt has {len(it['prompt_ids'])} tokens, and data.max_prompt_length is {most}.")
        found = Experience(
            tokens=it["prompt_ids"] + it["response_ids"],
            prompt_length=len(it["prompt_ids"]),
            action_mask=[bool(each) for each in it["response_mask"]],
            logprobs=[float(each) for each in it["response_logprobs"]],
            metrics={"num_turns": float(it["num_turns"])},
        )
        return judged(found, it["reward"], it["is_correct"])
