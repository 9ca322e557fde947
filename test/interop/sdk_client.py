"""Drives a server with the official SDK and prints one line of JSON per scenario.

usage: sdk_client.py BASE_URL BASE_MODEL SCENARIO...
"""

import io
import json
import math
import sys
import tarfile
import traceback
import urllib.request
import warnings

warnings.filterwarnings("ignore")

import numpy as np
import tinker
from tinker import types

URL, MODEL = sys.argv[1], sys.argv[2]
STORY = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
ADAM = types.AdamParams(learning_rate=1e-3)


def got(value):
    """Newer SDKs return futures where older ones return clients."""
    return value.result() if hasattr(value, "result") else value


def service():
    return tinker.ServiceClient(base_url=URL)


def trainer(rank=8, seed=1, client=None):
    return got((client or service()).create_lora_training_client(base_model=MODEL, rank=rank, seed=seed))


def tokens(tokenizer, text=STORY):
    return [1] + tokenizer.encode(text, add_special_tokens=False)


def datum(ids, **inputs):
    inputs = {"target_tokens": np.array(ids[1:]), **inputs}
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={k: np.asarray(v, np.int64 if k == "target_tokens" else np.float32) for k, v in inputs.items()},
    )


def logprobs(output):
    return [np.array(record["logprobs"].data, np.float64) for record in output.loss_fn_outputs]


def numbers(array):
    return [float(x) for x in array]


def sft():
    client = trainer()
    ids = tokens(client.get_tokenizer())
    weights = np.linspace(-0.5, 1.5, len(ids) - 1)
    result = client.forward([datum(ids, weights=weights)], "cross_entropy").result()
    again = client.forward([datum(ids, weights=weights)], "cross_entropy").result()
    losses = []
    for _ in range(6):
        both = [datum(ids, weights=np.ones(len(ids) - 1)), datum(ids[:9], weights=np.ones(8))]
        output = client.forward_backward(both, "cross_entropy")
        step = client.optim_step(ADAM)
        losses.append(output.result().metrics["loss:sum"])
        step.result()
    return {
        "losses": losses,
        "weighted": result.metrics["loss:sum"],
        "by_hand": -float(np.dot(logprobs(result)[0], weights)),
        "forward_repeats": logprobs(result)[0].tolist() == logprobs(again)[0].tolist(),
        "lengths": [len(x) for x in logprobs(output.result())],
        "metric_names": sorted(result.metrics),
        "info": [client.get_info().is_lora, client.get_info().lora_rank, client.get_info().model_data.arch],
    }


def loss_value(name, p, q, a, config):
    r = np.exp(p - q)
    low, high = config.get("clip_low_threshold"), config.get("clip_high_threshold")
    if name == "importance_sampling":
        return -np.sum(r * a)
    if name == "ppo":
        low, high = low or 0.8, high or 1.2
        return -np.sum(np.minimum(r * a, np.clip(r, low, high) * a))
    if name == "cispo":
        low, high = low or 0.0, high or 4.0
        return -np.sum(np.clip(r, low, high) * p * a)
    return -np.sum(p * a - 0.5 * config["beta"] * (p - q) ** 2)


def losses():
    client = trainer()
    ids = tokens(client.get_tokenizer())
    n = len(ids) - 1
    rng = np.random.default_rng(0)
    p = logprobs(client.forward([datum(ids, weights=np.zeros(n))], "cross_entropy").result())[0]
    q = (p + rng.normal(0, 0.4, n)).astype(np.float32)
    a = rng.normal(0, 1, n).astype(np.float32)
    found = []
    for name, config in [
        ("importance_sampling", None),
        ("ppo", None),
        ("ppo", {"clip_low_threshold": 0.95, "clip_high_threshold": 1.01}),
        ("cispo", None),
        ("cispo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}),
        ("dro", {"beta": 0.3}),
    ]:
        output = client.forward([datum(ids, logprobs=q, advantages=a)], name, loss_fn_config=config).result()
        wanted = loss_value(name, logprobs(output)[0], q.astype(np.float64), a.astype(np.float64), config or {})
        trained = client.forward_backward([datum(ids, logprobs=q, advantages=a)], name, loss_fn_config=config).result()
        step = client.optim_step(types.AdamParams(learning_rate=0.0)).result()
        found.append(
            {
                "name": name,
                "service": output.metrics["loss:sum"],
                "trained": trained.metrics["loss:sum"],
                "by_hand": float(wanted),
                "grad_norm": step.metrics["grad_norm"],
            }
        )
    return {"losses": found}


def custom():
    import torch

    def cross_entropy(data, logprobs_list):
        total = -sum((lp * torch.tensor(d.loss_fn_inputs["weights"].data)).sum() for d, lp in zip(data, logprobs_list))
        return total, {"mine": float(total)}

    ids = None
    ends = []
    for use_custom in (False, True):
        client = trainer(seed=5)
        ids = ids or tokens(client.get_tokenizer())
        n = len(ids) - 1
        data = [datum(ids, weights=np.linspace(-1, 2, n)), datum(ids[:7], weights=np.full(6, 0.3))]
        metrics = []
        for _ in range(3):
            if use_custom:
                output = got(client.forward_backward_custom(data, cross_entropy))
            else:
                output = client.forward_backward(data, "cross_entropy").result()
            step = client.optim_step(ADAM).result()
            metrics.append([output.metrics.get("mine", output.metrics["loss:sum"]), step.metrics["grad_norm"]])
        end = client.forward([datum(ids, weights=np.ones(n))], "cross_entropy").result()
        ends.append({"metrics": metrics, "logprobs": numbers(logprobs(end)[0])})
    return {"built_in": ends[0], "custom": ends[1]}


def resume():
    client = trainer()
    ids = tokens(client.get_tokenizer())
    data = [datum(ids, weights=np.ones(len(ids) - 1))]

    def steps(of, count):
        for _ in range(count):
            of.forward_backward(data, "cross_entropy")
            last = of.optim_step(ADAM)
        last.result()

    def score(of):
        return numbers(logprobs(of.forward(data, "cross_entropy").result())[0])

    steps(client, 2)
    path = client.save_state("half").result().path
    half = score(client)
    steps(client, 2)
    whole = score(client)
    resumed = got(service().create_training_client_from_state_with_optimizer(path))
    at_start = score(resumed)
    steps(resumed, 2)
    fresh = got(service().create_training_client_from_state(path))
    fresh_start = score(fresh)
    steps(fresh, 2)
    return {
        "path": path,
        "half": half,
        "at_start": at_start,
        "fresh_start": fresh_start,
        "whole": whole,
        "resumed": score(resumed),
        "fresh": score(fresh),
    }


def sampling():
    client = trainer()
    tokenizer = client.get_tokenizer()
    ids = tokens(tokenizer)
    data = [datum(ids, weights=np.ones(len(ids) - 1))]
    prompt = types.ModelInput.from_ints(ids[:5])
    first = got(client.save_weights_and_get_sampling_client())
    first_scores = first.compute_logprobs(types.ModelInput.from_ints(ids)).result()
    for _ in range(3):
        client.forward_backward(data, "cross_entropy")
        client.optim_step(ADAM).result()
    second = got(client.save_weights_and_get_sampling_client())

    def sample(of, n=1, **params):
        return of.sample(prompt=prompt, num_samples=n, sampling_params=types.SamplingParams(**params)).result()

    drawn = sample(second, 4, max_tokens=16, seed=3)
    again = sample(second, 4, max_tokens=16, seed=3)
    worst = 0.0
    for sequence in drawn.sequences:
        row = ids[:5] + list(sequence.tokens)
        scored = client.forward([datum(row, weights=np.zeros(len(row) - 1))], "cross_entropy").result()
        worst = max(worst, float(np.max(np.abs(logprobs(scored)[0][4:] - np.array(sequence.logprobs)))))
    greedy = sample(second, 1, max_tokens=12, temperature=0.0).sequences[0]
    likeliest = sample(second, 1, max_tokens=12, top_k=1).sequences[0]
    stop_id = greedy.tokens[4]
    by_id = sample(second, 1, max_tokens=12, temperature=0.0, stop=[int(stop_id)]).sequences[0]
    text = tokenizer.decode(greedy.tokens)
    word = text.split()[2]
    by_text = sample(second, 1, max_tokens=12, temperature=0.0, stop=[word]).sequences[0]
    result = second.sample(
        prompt=types.ModelInput.from_ints(ids),
        num_samples=1,
        sampling_params=types.SamplingParams(max_tokens=1),
        include_prompt_logprobs=True,
        topk_prompt_logprobs=3,
    ).result()
    trained = client.forward(data, "cross_entropy").result()
    return {
        "repeats": [list(s.tokens) for s in drawn.sequences] == [list(s.tokens) for s in again.sequences],
        "distinct": len({tuple(s.tokens) for s in drawn.sequences}),
        "worst_gap": worst,
        "greedy": [int(t) for t in greedy.tokens],
        "likeliest": [int(t) for t in likeliest.tokens],
        "stop_id": int(stop_id),
        "by_id": [[int(t) for t in by_id.tokens], by_id.stop_reason],
        "word": word,
        "by_text": [tokenizer.decode(by_text.tokens), by_text.stop_reason],
        "prompt_first": result.prompt_logprobs[0],
        "prompt_logprobs": result.prompt_logprobs[1:],
        "trainer_logprobs": numbers(logprobs(trained)[0]),
        "topk": [[list(map(float, pair)) for pair in row] if row else None for row in result.topk_prompt_logprobs],
        "old_before": first_scores[1:],
        "old_after": first.compute_logprobs(types.ModelInput.from_ints(ids)).result()[1:],
        "tokenizer_size": len(first.get_tokenizer()),
    }


def named_sampler():
    client = trainer()
    ids = tokens(client.get_tokenizer())
    data = [datum(ids, weights=np.ones(len(ids) - 1))]
    client.forward_backward(data, "cross_entropy")
    client.optim_step(ADAM).result()
    path = client.save_weights_for_sampler("named").result().path
    result = numbers(logprobs(client.forward(data, "cross_entropy").result())[0])
    sampler = got(service().create_sampling_client(model_path=path))
    base = got(service().create_sampling_client(base_model=MODEL))
    row = types.ModelInput.from_ints(ids)
    return {
        "path": path,
        "trainer": result,
        "sampler": sampler.compute_logprobs(row).result()[1:],
        "base": base.compute_logprobs(row).result()[1:],
    }


def grpo():
    """Samples are rewarded for a letter: the share of that letter grows."""
    client = trainer(rank=16)
    tokenizer = client.get_tokenizer()
    ids = tokens(tokenizer, "Once upon a time")
    prompt = types.ModelInput.from_ints(ids)
    rewards_by_step = []
    for step in range(8):
        sampler = got(client.save_weights_and_get_sampling_client())
        params = types.SamplingParams(max_tokens=12, seed=step)
        sequences = sampler.sample(prompt=prompt, num_samples=32, sampling_params=params).result().sequences
        rewards = np.array([tokenizer.decode(s.tokens).count("o") / 12 for s in sequences])
        rewards_by_step.append(float(rewards.mean()))
        data = []
        for sequence, advantage in zip(sequences, rewards - rewards.mean()):
            row = ids + list(sequence.tokens)
            before = len(ids) - 1
            data.append(
                datum(
                    row,
                    logprobs=[0.0] * before + list(sequence.logprobs),
                    advantages=[0.0] * before + [float(advantage)] * len(sequence.tokens),
                )
            )
        client.forward_backward(data, "importance_sampling")
        client.optim_step(types.AdamParams(learning_rate=3e-3)).result()
    return {"rewards": rewards_by_step}


def chunks():
    client = trainer(rank=2)
    ids = tokens(client.get_tokenizer())[:4]
    data = [datum(ids, weights=np.full(3, (i % 7) / 7)) for i in range(1100)]
    output = client.forward_backward(data, "cross_entropy").result()
    by_hand = -sum(float(np.dot(lp, d.loss_fn_inputs["weights"].data)) for lp, d in zip(logprobs(output), data))
    return {"count": len(output.loss_fn_outputs), "service": output.metrics["loss:sum"], "by_hand": by_hand}


def side_by_side():
    """Two clients of one session with different ranks, alternating."""
    client = service()
    small, large = trainer(2, 1, client), trainer(32, 2, client)
    ids = tokens(small.get_tokenizer())
    data = [datum(ids, weights=np.ones(len(ids) - 1))]
    found = {"small": [], "large": []}
    for _ in range(3):
        futures = [(name, of.forward_backward(data, "cross_entropy"), of.optim_step(ADAM)) for name, of in (("small", small), ("large", large))]
        for name, output, _ in futures:
            found[name].append(output.result().metrics["loss:sum"])
    return found


def records():
    client = service()
    of = trainer(4, 1, client)
    ids = tokens(of.get_tokenizer())
    of.forward_backward([datum(ids, weights=np.ones(len(ids) - 1))], "cross_entropy")
    of.optim_step(ADAM)
    path = of.save_state("kept", ttl_seconds=3600).result().path
    of.save_weights_for_sampler("served").result()
    rest = client.create_rest_client()
    run = path.split("/")[2]
    listed = rest.list_checkpoints(run).result().checkpoints
    info = got(rest.get_weights_info_by_tinker_path(path))
    got(rest.publish_checkpoint_from_tinker_path(path))
    public = [c.public for c in rest.list_checkpoints(run).result().checkpoints if c.tinker_path == path]
    got(rest.set_checkpoint_ttl_from_tinker_path(path, None))
    kept = [c.expires_at for c in rest.list_checkpoints(run).result().checkpoints if c.tinker_path == path]
    archive = None
    if hasattr(rest, "get_checkpoint_archive_url_from_tinker_path"):
        url = rest.get_checkpoint_archive_url_from_tinker_path(path).result().url
        with tarfile.open(fileobj=io.BytesIO(urllib.request.urlopen(url).read())) as tar:
            archive = {m.name: m.size for m in tar.getmembers()}
            config = json.load(tar.extractfile("adapter_config.json"))
            archive["rank"] = config["r"]
    session = rest.get_session(run.split(":")[0]).result()
    rest.delete_checkpoint_from_tinker_path(path).result()
    return {
        "run": run,
        "kinds": sorted(c.checkpoint_type for c in listed),
        "sizes": [c.size_bytes for c in listed],
        "ttl_set": [c.expires_at is not None for c in listed if c.tinker_path == path],
        "info": [info.is_lora, info.lora_rank, info.base_model],
        "public": public,
        "kept": kept,
        "archive": archive,
        "session_runs": session.training_run_ids,
        "runs": [r.training_run_id for r in rest.list_training_runs().result().training_runs],
        "run_rank": rest.get_training_run(run).result().lora_rank,
        "after_delete": [c.tinker_path for c in rest.list_checkpoints(run).result().checkpoints],
        "user_checkpoints": len(rest.list_user_checkpoints().result().checkpoints),
    }


def failure(action):
    try:
        got(action())
        return None
    except Exception as error:
        return {"type": type(error).__name__, "category": str(getattr(error, "category", "")), "text": str(error)[:400]}


def mistakes():
    client = trainer()
    ids = tokens(client.get_tokenizer())
    ones = np.ones(len(ids) - 1)
    sampler = got(client.save_weights_and_get_sampling_client())
    row = types.ModelInput.from_ints

    def backward(data, loss="cross_entropy", **more):
        return lambda: client.forward_backward([data], loss, **more)

    def draw(ids, **params):
        return lambda: sampler.sample(prompt=row(ids), num_samples=1, sampling_params=types.SamplingParams(**params))

    found = {
        "missing_input": failure(backward(datum(ids, advantages=ones), "importance_sampling")),
        "unknown_setting": failure(backward(datum(ids, logprobs=ones, advantages=ones), "ppo", loss_fn_config={"clip": 1.0})),
        "short_weights": failure(backward(datum(ids, weights=ones[1:]))),
        "not_finite": failure(backward(datum(ids, weights=ones * math.nan))),
        "token_outside": failure(backward(datum(ids[:-1] + [100_000], weights=ones))),
        "too_long": failure(backward(datum(ids * 40, weights=np.ones(len(ids) * 40 - 1)))),
        "step_after_failure": failure(lambda: client.optim_step(ADAM)),
        "prompt_too_long": failure(draw([1] * 512, max_tokens=4)),
        "no_tokens": failure(draw([1], max_tokens=0)),
        "bad_top_p": failure(draw([1], max_tokens=1, top_p=0.0)),
        "other_model": failure(lambda: service().create_lora_training_client(base_model="org/other", rank=4)),
        "no_checkpoint": failure(lambda: service().create_sampling_client(model_path="tinker://nobody:train:0/sampler_weights/x")),
        "bad_name": failure(lambda: client.save_state("../escape")),
    }
    found["alive"] = client.forward_backward([datum(ids, weights=ones)], "cross_entropy").result().metrics["loss:sum"]
    client.optim_step(ADAM).result()
    return found


def newer():
    """What later releases than the oldest send; nothing where the SDK lacks it."""
    if not hasattr(types, "SaveWeightsExternalRequest"):
        return {}
    sdk = tinker.ServiceClient(base_url=URL, display_name="Newer requests", project_id="interop")
    client = trainer(client=sdk)
    row, ids = types.ModelInput.from_ints, tokens(client.get_tokenizer())
    n = len(ids) - 1
    one = client.forward([datum(ids)], "cross_entropy").result()
    targets = np.stack([ids[1:], ids[:-1]], 1)
    weights = np.linspace(-1, 1, 2 * n).reshape(n, 2).astype(np.float32)
    two = client.forward_backward([datum(ids, target_tokens=targets, weights=weights)], "cross_entropy").result()
    both = np.array(two.loss_fn_outputs[0]["logprobs"].data).reshape(n, 2)
    half = np.concatenate([np.zeros(n // 2), np.ones(n - n // 2)])
    q = dict(logprobs=logprobs(one)[0], advantages=half, sequence_ratio_mask=half)
    gspo = client.forward_backward([datum(ids, **q)], "gspo").result()
    inflight = got(client.save_weights_and_get_sampling_client(kind="inflight"))
    pinned = got(client.save_weights_and_get_sampling_client())
    scored = lambda sampler: sampler.compute_logprobs(row(ids)).result()[1:]
    before = [scored(inflight), scored(pinned)]
    client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    later = got(client.save_weights_and_get_sampling_client(kind="inflight"))
    choices = [5, 9]
    last = types.TensorData(data=choices, dtype="int64", shape=[n, 2], sparse_crow_indices=[0] * n + [2], sparse_col_indices=[0, 1])
    every = types.TensorData(data=ids[1:], dtype="int64", shape=[n, 1])
    chosen, own = [
        pinned.sample(row(ids), 1, types.SamplingParams(max_tokens=1), target_prompt_logprobs=wanted).result().target_prompt_logprobs
        for wanted in (last, every)
    ]
    there = [pinned.compute_logprobs(row([*ids[:-1], choice])).result()[-1] for choice in choices]
    params = types.SamplingParams(max_tokens=6, seed=1, temperature=0.7)
    plain, topped = [pinned.sample(row(ids), 2, params, topk_sample_logprobs=k).result().sequences for k in (0, 3)]
    best = [max(map(abs, np.array(it.logprobs)[hit] - np.array(top.logprobs)[hit, 0]), default=0) for it in topped
            for top in [it.topk_logprobs_np] for hit in [np.array(top.token_ids)[:, 0] == it.tokens]]
    drawn = pinned.sample(row(ids), 1, params, prompt_alt_tokens_k=3).result().prompt_alt_tokens
    rescored = pinned.sample(row(ids), 1, params, target_prompt_logprobs=drawn.tokens).result().target_prompt_logprobs
    other = failure(lambda: client.optim_step(types.DimuonParams(learning_rate=1e-3)))
    external = client.save_weights_external("out").result().path
    rest = sdk.create_rest_client()
    urls = rest.get_external_weights_urls(external).result().urls
    found = rest.search_sessions(types.SessionSearchRequest(display_name="newer")).result().sessions
    return {
        "model_name": client.get_info().model_data.model_name,
        "default_loss": [one.metrics["loss:sum"], -float(np.sum(logprobs(one)[0]))],
        "shape": two.loss_fn_outputs[0]["logprobs"].shape,
        "first_column": both[:, 0].tolist() == logprobs(one)[0].tolist(),
        "weighted": [two.metrics["loss:sum"], -float(np.sum(both * weights))],
        "elementwise": [float(np.sum(two.loss_fn_outputs[0]["elementwise_loss"].data)), two.metrics["loss:sum"]],
        "gspo": [gspo.metrics["loss:sum"], -float(half.sum())],
        "inflight": [scored(inflight) == before[0], scored(inflight) == scored(later), scored(pinned) == before[1]],
        "choices": [list(chosen.data) == there, chosen.sparse_crow_indices == last.sparse_crow_indices, list(chosen.shape)],
        "own": [list(own.data) == scored(pinned), list(own.shape)],
        "tokens": n + 1,
        "topk_samples": [[it.tokens for it in plain] == [it.tokens for it in topped], max(best),
                         [list(it.topk_logprobs_np.token_ids.shape) == [len(it.tokens), 3] for it in topped], plain[0].topk_logprobs],
        "drawn": [list(drawn.tokens.shape), list(drawn.logprobs.shape),
                  float(np.max(np.abs(np.array(drawn.logprobs.data) - np.array(rescored.data))))],
        "other_optimiser": other,
        "external": {name: len(urllib.request.urlopen(url).read()) for name, url in urls.items()},
        "sessions": [[it.display_name, it.project_id, it.checkpoints_count] for it in found],
        "project": [len(rest.list_training_runs(project_id=p).result().training_runs) for p in ("interop", "other")],
    }


for scenario in sys.argv[3:]:
    try:
        result = {"ok": globals()[scenario]()}
    except Exception:
        result = {"error": traceback.format_exc()}
    print(json.dumps({"scenario": scenario, **result}), flush=True)
