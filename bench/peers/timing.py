"""What the peers share: options, timing, and a JSON object a line."""

import argparse
import json
import statistics
import sys
import time


def options():
    """Of a model and the work: decoding of one row, and sampling of many, `new-tokens` each, behind a prompt of token ids."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", type=lambda text: [int(t) for t in text.split(",")], required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--new-tokens", type=int, required=True)
    parser.add_argument("--greedy", type=int, required=True, help="tokens that are compared")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--bfloat16", action="store_true", help="weights and arithmetic, where the peer has both")
    return parser.parse_args()


def tell(**line):
    print(json.dumps(line), flush=True)


def skip(why):
    tell(skipped=why)
    sys.exit(0)


def timed(what, run, tokens, seconds):
    """Tells the rate at the median of at least two runs after an unmeasured one, and then as many as fit."""
    run()
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 2 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    tell(what=what, tokens_per_s=tokens / statistics.median(times), low=tokens / max(times), high=tokens / min(times))
