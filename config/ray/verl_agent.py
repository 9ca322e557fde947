"""The agents of a grpu run as an agent loop of verl 0.8 and 0.9: `actor_rollout_ref.rollout.agent`."""

import asyncio
import contextlib
import time
import uuid

from grpu_service import call
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput


class GrpuAgentLoop:
    """Plays one rollout: the service says what to generate, and at the end which tokens to train on."""

    def __init__(self, trainer_config, server_manager, tokenizer, **_):
        self.limits = trainer_config.config.actor_rollout_ref.rollout
        self.server, self.tokenizer = server_manager, tokenizer
        self.seconds, self.steps = 0.0, []

    async def run(self, sampling_params, **row):
        info, key, seq = row["extra_info"], uuid.uuid4().hex, 0
        body = {
            "task": {"split": info["split"], "index": int(info["grpu_task"])},
            "rollout_index": int(row.get("session_id", 0)),
            "step": int(row.get("global_steps", 0)),
            "validate": info["split"] == "val",
            "sampling_params": sampling_params,
            "max_prompt_length": self.limits.prompt_length,
            "max_response_length": self.limits.response_length,
            # Only the V1 trainer, which numbers the rollouts of a prompt, takes several trajectories of one.
            "takes": "same_reward" if "session_id" in row else "one",
        }
        while True:
            answer = await call("POST", "/rollouts", {"id": key, "seq": seq, **body})
            if answer["action"] == "done":
                outputs = [self.output(trajectory) for trajectory in answer["trajectories"]]
                return outputs if len(outputs) > 1 else outputs[0]
            if answer["action"] == "error":
                raise RuntimeError(f"The rollout of {info['split']} task {info['grpu_task']} failed: {answer['message']}")
            calls = [self.generate(key, sampling_params, wanted) for wanted in answer.get("calls", [])]
            try:
                body, seq = {"results": await asyncio.gather(*calls)}, seq + 1
            except BaseException:
                with contextlib.suppress(Exception):  # the first error is the one to report
                    await call("DELETE", f"/rollouts/{key}")
                raise

    async def generate(self, key, usual, wanted):
        params, started = {**usual, **wanted.get("sampling_params", {})}, time.monotonic()
        out = await self.server.generate(request_id=key, prompt_ids=wanted["prompt_ids"], sampling_params=params)
        self.seconds += time.monotonic() - started
        steps = (out.extra_fields.get(name) for name in ("min_global_steps", "max_global_steps"))
        self.steps += [step for step in steps if step is not None]
        log_probs = out.log_probs and [float(value) for value in out.log_probs]
        return {"call": wanted["call"], "token_ids": out.token_ids, "log_probs": log_probs, "stop_reason": out.stop_reason}

    def output(self, trajectory):
        prompt, most = trajectory["prompt_ids"], self.limits.response_length
        if len(prompt) > self.limits.prompt_length:
            raise RuntimeError(f"A prompt has {len(prompt)} tokens, and data.max_prompt_length is {self.limits.prompt_length}.")
        names = ("response_ids", "response_mask", "response_logprobs")
        ids, mask, logprobs = (None if trajectory[name] is None else trajectory[name][:most] for name in names)
        if not ids:  # verl breaks on an empty response: one token that is not trained on stands for it
            ids, mask, logprobs = [self.tokenizer.eos_token_id or 0], [0], [0.0] if self.limits.calculate_log_probs else None
        components = {name: float(value) for name, value in trajectory.get("components", {}).items()}
        extra = {**components, "score": float(trajectory["reward"]), "acc": float(bool(trajectory["is_correct"]))}
        fields = {"reward_extra_info": extra, "turn_scores": [], "tool_rewards": []}
        if self.steps:
            fields |= {"min_global_steps": min(self.steps), "max_global_steps": max(self.steps)}
        told = {"reward_score": extra["score"], "num_turns": trajectory["num_turns"], "extra_fields": fields}
        metrics = {"generate_sequences": self.seconds}
        return AgentLoopOutput(
            prompt_ids=prompt, response_ids=ids, response_mask=mask, response_logprobs=logprobs, metrics=metrics, **told
        )
