"""SkyRL's own HTTP tests of its Tinker server, driven against `grpu serve tinker`.

Usage: skyrl_tests.py SKYRL MODEL SERVER, where SERVER is the JSON list that starts our server. What of the tests only SkyRL's server has
is listed below, with the reason; everything else runs as it is. The exit code is pytest's.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import types
from contextlib import contextmanager

import pytest
import tinker

SKYRL, MODEL, SERVER = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])

# (what is SkyRL's own, the test of it)
NOT_RUN = [
    ("the command that starts its engine", "test_build_cmd_engine"),
    ("the command that starts its engine", "test_build_cmd_engine_invalid_arg"),
    ("sessions that end after three seconds, and the lines of its log; ours last a minute or more", "test_stale_session_cleanup"),
]

# (what is SkyRL's own, the text in its tests, the text that holds here). Each text must be there exactly once.
ONLY_SKYRL = [
    (
        "the name of a loss's outputs; Tinker's binary form calls them ArrayRecord, as the SDK does",
        'assert fwdbwd_result.loss_fn_output_type == "scalar"',
        'assert fwdbwd_result.loss_fn_output_type == "ArrayRecord"',
    ),
    (
        "its server refuses to load weights into a client that has made requests; ours loads them, as the SDK's methods say",
        """    with pytest.raises(Exception, match="LoadWeights is not permitted"):
        training_client.load_state(resume_path).result()
    with pytest.raises(Exception, match="LoadWeights is not permitted"):
        training_client.load_state_with_optimizer(resume_path).result()
""",
        """    training_client.load_state(resume_path).result()
    training_client.load_state_with_optimizer(resume_path).result()
""",
    ),
    (
        "the archives in its folder; ours keeps a folder for each checkpoint",
        'return checkpoints_base / training_run_id / f"{checkpoint_id}.tar.gz"',
        'return checkpoints_base / training_run_id.replace(":train:", "/train-") / "weights" / checkpoint_id',
    ),
    (
        "the same of weights for samplers",
        'return checkpoints_base / training_run_id / "sampler_weights" / f"{checkpoint_id}.tar.gz"',
        'return checkpoints_base / training_run_id.replace(":train:", "/train-") / "sampler_weights" / checkpoint_id',
    ),
    (
        "its generator on JAX cannot score the most likely tokens of a prompt; ours can",
        """    with pytest.raises(ValueError, match="topk_prompt_logprobs is not supported"):
        sampling_client.sample(
            prompt=prompt,
            sampling_params=sampling_params,
            num_samples=1,
            include_prompt_logprobs=True,
            topk_prompt_logprobs=4,
        ).result()
""",
        """    result = sampling_client.sample(
        prompt=prompt,
        sampling_params=sampling_params,
        num_samples=1,
        include_prompt_logprobs=True,
        topk_prompt_logprobs=4,
    ).result()
    assert [likely and len(likely) for likely in result.topk_prompt_logprobs] == [None] + [4] * (len(prompt_tokens) - 1)
""",
    ),
    (
        "checkpoint ids without their kind; ours are those that the SDK reads from a tinker:// path",
        'assert "0000" in checkpoint_ids',
        'assert {"weights/0000", "sampler_weights/0000"} <= set(checkpoint_ids)',
    ),
    (
        "the same",
        "ckpt.checkpoint_id: ckpt for ckpt in",
        "ckpt.checkpoint_id.split('/')[1]: ckpt for ckpt in",
    ),
    (
        "it refuses a checkpoint id without its kind; ours takes one that only one kind has",
        """        with pytest.raises(Exception) as exc_info:
            rest_client.delete_checkpoint(training_run_id, "ckpt0").result()
        assert getattr(exc_info.value, "status_code", None) == 400
        assert set(listed_checkpoints()) == {"ckpt0", "ckpt2"}
        assert training_ckpt_file("ckpt0").exists()
""",
        """        rest_client.delete_checkpoint(training_run_id, "ckpt0").result()
        assert set(listed_checkpoints()) == {"ckpt2"}
        assert not training_ckpt_file("ckpt0").exists()
""",
    ),
]


def adapted(text):
    for what, theirs, ours in ONLY_SKYRL:
        assert text.count(theirs) == 1, f"SkyRL's tests have another text for {what}"
        text = text.replace(theirs, ours)
    return text


def stub_server_package():
    """The tests import the server's package for tests of its own command line."""
    for name, members in {
        "skyrl": {},
        "skyrl.tinker": {},
        "skyrl.tinker.api": {"_build_uv_run_cmd_engine": None},
        "skyrl.tinker.config": {"EngineConfig": dict},
    }.items():
        stub = types.ModuleType(name)
        vars(stub).update(members)
        sys.modules[name] = stub


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@contextmanager
def start_api_server(overrides=None, **_):
    """In the place of the tests' own, whose options it translates."""
    from tests.tinker.conftest import api_server_is_up, wait_for_condition

    options = overrides or {}
    port = options.get("port") or str(OurServer.module.TEST_SERVER_PORT)
    with tempfile.TemporaryDirectory() as folder:
        log_path = os.path.join(folder, "server.log")
        args = ["--port", port, "--model", MODEL]
        args += ["--checkpoints", options.get("checkpoints-base") or os.path.join(folder, "saved")]
        with open(log_path, "w") as log:
            process = subprocess.Popen([*SERVER, *args], stdout=log, stderr=log)
        try:
            assert wait_for_condition(lambda: api_server_is_up(int(port)), timeout_sec=60), open(log_path).read()
            yield process, log_path
        finally:
            process.terminate()
            process.wait(timeout=60)


def local(client):
    """Our server answers to its own names; 0.0.0.0 is not one."""
    return lambda base_url, **more: client(base_url=base_url.replace("0.0.0.0", "127.0.0.1"), **more)


class OurServer:
    module = None

    def pytest_collection_modifyitems(self, items):
        module = OurServer.module = items[0].module
        module.BASE_MODEL = MODEL
        module.TEST_SERVER_PORT = free_port()
        module.start_api_server = start_api_server
        tinker.ServiceClient = local(tinker.ServiceClient)
        tinker._client.AsyncTinker = local(tinker._client.AsyncTinker)


def main():
    sys.path.insert(0, SKYRL)
    stub_server_package()
    with open(os.path.join(SKYRL, "tests/tinker/test_api.py")) as file:
        text = adapted(file.read())
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "test_skyrl_api.py")
        with open(path, "w") as file:
            file.write(text)
        args = ["-v", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=120", "--rootdir", folder, path]
        without = " and ".join(f"not {name}" for _, name in NOT_RUN)
        return pytest.main([*args, "-k", without], plugins=[OurServer()])


sys.exit(main())
