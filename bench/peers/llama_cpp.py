"""llama.cpp on the CPU, by its server in xllamacpp, on a GGUF file: the greedy tokens, then decoding of one row and sampling of many
(none with `--batch 1`).

    python3 bench/peers/llama_cpp.py --model model.gguf --prompt 1,403 --batch 64 --new-tokens 120 --greedy 32 --threads 2
"""

import json
from concurrent.futures import ThreadPoolExecutor

from timing import options, skip, tell, timed

try:
    import xllamacpp
except ImportError as missing:
    skip(f"python3 has no xllamacpp ({missing})")

args = options()


def serve(rows):
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.n_parallel = rows
    params.n_ctx = rows * 2 ** (len(args.prompt) + max(args.new_tokens, args.greedy)).bit_length()
    params.cpuparams.n_threads = args.threads
    params.cpuparams_batch.n_threads = args.threads
    params.warmup = False
    params.cache_prompt = False
    return xllamacpp.Server(params)


def complete(server, count, **how):
    body = {"prompt": args.prompt, "n_predict": count, "max_tokens": count, "ignore_eos": True, "cache_prompt": False, **how}
    answer = server.handle_completions(body)
    answer = json.loads(answer) if isinstance(answer, str) else answer
    assert answer["usage"]["completion_tokens"] == count, answer
    assert answer["usage"]["prompt_tokens"] == len(args.prompt), answer["usage"]
    return answer["choices"][0]


one = serve(1)
greedy = complete(one, args.greedy, temperature=0, top_k=1, n_probs=1)
tell(greedy=[token["id"] for token in greedy["logprobs"]["content"]], version=xllamacpp.BUILD_INFO)
timed("decode", lambda: complete(one, args.new_tokens, temperature=0, top_k=1), args.new_tokens, args.seconds)
del one
if args.batch == 1:
    raise SystemExit

many = serve(args.batch)
pool = ThreadPoolExecutor(args.batch)
how = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def sample():
    rows = [pool.submit(complete, many, args.new_tokens, seed=seed, **how) for seed in range(args.batch)]
    for row in rows:
        row.result()


timed("sample", sample, args.batch * args.new_tokens, args.seconds)
