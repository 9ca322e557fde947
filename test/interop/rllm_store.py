"""Drives rLLM's SQLite trace store: write PATH | list PATH | delete PATH SESSION. Answers with JSON."""

import asyncio
import json
import sys

from rllm_model_gateway.store.sqlite_store import SqliteTraceStore


def trace(i: int) -> dict:
    return {
        "trace_id": f"py-{i}",
        "session_id": f"s{i % 3}",
        "model": "m",
        "messages": [{"role": "user", "content": "ü"}],
        "prompt_token_ids": [1, 2, i],
        "response_message": {"role": "assistant", "content": "x"},
        "completion_token_ids": [4, 5],
        "logprobs": [-0.1, -1 / 3],
        "routing_matrices": None,
        "finish_reason": "stop",
        "weight_version": 3,
        "latency_ms": 1.5,
        "token_counts": {"prompt": 3, "completion": 2},
        "timestamp": 1000.0 + i,
        "metadata": {"task": i},
        "raw_request": None,
        "raw_response": None,
    }


async def main(command: str, path: str, *args: str) -> object:
    store = SqliteTraceStore(path)
    try:
        if command == "write":
            traces = [trace(i) for i in range(30)]
            for each in traces:
                await store.store_trace(each["trace_id"], each["session_id"], each)
            return traces
        if command == "delete":
            return await store.delete_session(args[0])
        sessions = [each["session_id"] for each in await store.list_sessions()]
        return {"sessions": sessions, "traces": {each: await store.get_session_traces(each) for each in sessions}}
    finally:
        await store.close()


print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
