"""The reward of a grpu run as a workflow of Trinity-RFT 0.6: `default_workflow_type: trinity_reward.GrpuReward`."""

import uuid
from dataclasses import asdict

from grpu_service import call
from trinity.common.workflows.workflow import Workflow


def judged(experience, score, is_correct):
    experience.reward = float(score)
    experience.metrics = {**experience.metrics, "reward": float(score), "acc": float(is_correct)}
    return experience


class GrpuReward(Workflow):
    """Trinity samples all replies to a prompt; the service judges them in one request."""

    is_async = can_repeat = True

    def set_repeat_times(self, repeat_times, run_id_base):
        self.repeat_times, self.run_id_base = repeat_times, run_id_base

    async def run_async(self):
        row, info = self.task.raw_task, self.task.raw_task["extra_info"]
        params = {**asdict(self.task.rollout_args), "n": self.repeat_times}
        replies = await self.model.chat_async(row["prompt"], **params)
        fields = {"data_source": row["data_source"], "ground_truth": "", "extra_info": info}
        items = [{**fields, "solution": reply.response_text} for reply in replies]
        results = (await call("POST", "/rewards", {"id": uuid.uuid4().hex, "items": items}))["results"]
        error = next((result["error"] for result in results if "error" in result), None)
        if error is not None:
            raise RuntimeError(f"The reward of {info['split']} task {info['grpu_task']} failed: {error}")
        for run, reply in enumerate(replies):
            reply.eid.run = self.run_id_base + run
        return [judged(reply, it["score"], it["is_correct"]) for reply, it in zip(replies, results, strict=True)]
