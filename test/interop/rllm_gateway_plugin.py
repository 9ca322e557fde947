"""A pytest plugin: rLLM's own gateway tests drive our gateway, in a process of its own, in place of rLLM's application."""

import atexit
import os
import subprocess
import weakref

import httpx
import rllm_model_gateway
import rllm_model_gateway.server

CHILD = os.path.join(os.path.dirname(__file__), "rllm_gateway_child.mjs")


class Proxy:
    """What tests read of `app.state.proxy`."""

    def __init__(self, url):
        self.url = url

    @property
    def weight_version(self):
        return httpx.get(f"{self.url}/admin/weight_version").json()["weight_version"]


class State:
    def __init__(self, url):
        self.proxy = Proxy(url)


class App:
    """An ASGI application that passes every request on."""

    def __init__(self, config):
        self.child = subprocess.Popen(
            ["node", CHILD, config.model_dump_json()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self.child.stdin.close)
        weakref.finalize(self, self.child.stdin.close)
        self.url = self.child.stdout.readline().strip()
        self.state = State(self.url)

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            return await lifespan(receive, send)
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        query = scope["query_string"].decode()
        path = scope.get("raw_path", scope["path"].encode()).decode()
        headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
        async with httpx.AsyncClient(timeout=None) as client:
            url = self.url + path + (f"?{query}" if query else "")
            async with client.stream(scope["method"], url, content=body, headers=headers) as response:
                kept = [(k.encode(), v.encode()) for k, v in response.headers.items() if k != "transfer-encoding"]
                await send({"type": "http.response.start", "status": response.status_code, "headers": kept})
                async for chunk in response.aiter_raw():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b""})


async def lifespan(receive, send):
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return


def create_app(config=None, store=None, local_handler=None):
    if store is not None or local_handler is not None:
        raise NotImplementedError("another process cannot take a store or a handler of Python")
    config = config or rllm_model_gateway.GatewayConfig()
    if config.cumulative_token_mode:
        raise NotImplementedError("a renderer of Python cannot be taken by another process")
    return App(config)


rllm_model_gateway.create_app = create_app
rllm_model_gateway.server.create_app = create_app
