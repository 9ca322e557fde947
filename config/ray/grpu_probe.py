"""Asks the service of a run for its health, from a task on every node of the cluster. Prints one line of JSON."""

import json
import os
import socket
import ssl
import urllib.error
import urllib.request
from importlib import metadata

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

SECONDS = 10
START_SECONDS = 60
MOST_NODES = 64


def kind_of(error):
    """A word for what went wrong, by the operating system's error."""
    reason = getattr(error, "reason", error)
    kinds = [
        (ConnectionRefusedError, "refused"),
        (TimeoutError, "timeout"),
        (socket.gaierror, "name"),
        (ssl.SSLError, "tls"),
    ]
    return next((kind for cls, kind in kinds if isinstance(reason, cls)), "other")


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """The token must not go to another address."""

    def redirect_request(self, *args):
        return None


def version_of(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@ray.remote(num_cpus=0, max_retries=0)
def ask(url, token):
    versions = {package: version_of(package) for package in os.environ.get("GRPU_PACKAGES", "").split()}
    return {**health(url, token), "versions": versions}


def health(url, token):
    request = urllib.request.Request(url + "/health", headers={"Authorization": f"Bearer {token}"})
    # Without the proxies of the environment, as the workers ask later.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirect())
    try:
        with opener.open(request, timeout=SECONDS) as response:
            return {"status": response.status, "body": response.read(4096).decode("utf-8", "replace")}
    except urllib.error.HTTPError as error:
        return {"status": error.code, "body": ""}
    except Exception as error:  # noqa: BLE001: whatever it is, it is the answer
        return {"kind": kind_of(error), "error": str(getattr(error, "reason", error))}


def answer(future):
    try:
        return ray.get(future, timeout=START_SECONDS)
    except Exception as error:  # noqa: BLE001
        return {"kind": "task", "error": f"{type(error).__name__}: {error}".splitlines()[0]}


ray.init()
url, token = os.environ["GRPU_SERVICE_URL"], os.environ["GRPU_SERVICE_TOKEN"]
nodes = [node for node in ray.nodes() if node["Alive"]][:MOST_NODES]
futures = [
    ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(url, token)
    for node in nodes
]
places = [
    {"node": node["NodeManagerAddress"], **{name.lower() + "s": node["Resources"].get(name, 0) for name in ("CPU", "GPU")}}
    for node in nodes
]
found = [{**place, **answer(each)} for place, each in zip(places, futures)]
print("GRPU_PROBE " + json.dumps(found), flush=True)
