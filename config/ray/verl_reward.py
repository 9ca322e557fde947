"""The reward function of a grpu run inside verl 0.8 and 0.9: `reward.custom_reward_function`."""

import asyncio
import uuid

from grpu_service import call

GATHER_SECONDS, MOST_ITEMS = 0.005, 256
waiting = {}  # by event loop: the judgements that the next request takes
running = set()  # requests; a loop alone does not keep its tasks


async def judge(batch):
    try:
        reply = await call("POST", "/rewards", {"id": uuid.uuid4().hex, "items": [item for item, _ in batch]})
        answers = list(zip(batch, reply["results"], strict=True))
    except Exception as error:
        answers = [(each, {"error": str(error)}) for each in batch]
    for (_, future), result in answers:
        future.cancelled() or future.set_result(result)


def send(queue):
    batch, queue[:] = list(queue), []
    for start in range(0, len(batch), MOST_ITEMS):
        task = asyncio.ensure_future(judge(batch[start : start + MOST_ITEMS]))
        running.add(task)
        task.add_done_callback(running.discard)


async def compute_score(data_source, solution_str, ground_truth, extra_info, **_):
    """The reward of one response. verl asks for each by itself; those of a few milliseconds travel in one request."""
    loop = asyncio.get_running_loop()
    info = {"split": extra_info["split"], "index": int(extra_info["index"]), "grpu_task": int(extra_info["grpu_task"])}
    item = {"data_source": data_source, "solution": solution_str, "ground_truth": ground_truth, "extra_info": info}
    queue, future = waiting.setdefault(loop, []), loop.create_future()
    queue.append((item, future))
    if len(queue) == 1:
        loop.call_later(GATHER_SECONDS, send, queue)
    result = await future
    if "error" in result:
        raise RuntimeError(f"The reward of {info['split']} task {info['grpu_task']} failed: {result['error']}")
    # The same names for every response, because verl makes columns of them.
    components = {name: float(value) for name, value in result.get("components", {}).items()}
    return {**components, "score": float(result["score"]), "acc": float(bool(result["is_correct"]))}
