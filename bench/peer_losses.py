"""The clipped loss, group advantages and log-probs by plain PyTorch operations, for comparison with bench/*_bench.ts.

Prints one JSON object a line: {"what", "rate", "unit", "ms" (median), "spread_ms"}. Without torch it prints
{"skipped": why} and ends well.

    python3 bench/peer_losses.py --tokens 16777216
"""

import argparse
import json
import statistics
import sys
import time

try:
    import torch
except ImportError as missing:
    print(json.dumps({"skipped": f"python3 has no PyTorch ({missing})"}))
    sys.exit(0)


def report(what, count, unit, run, rounds=5):
    run()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    spread = [round(1e3 * min(seconds), 1), round(1e3 * max(seconds), 1)]
    print(json.dumps({"what": what, "rate": count / median, "unit": unit, "ms": round(1e3 * median, 1), "spread_ms": spread}))


def clipped_loss(tokens, row=256):
    logprobs = (-2 * torch.rand(tokens)).requires_grad_(True)
    old = logprobs.detach() + 0.4 * (torch.rand(tokens) - 0.5)
    advantages = (torch.rand(tokens // row) - 0.5).repeat_interleave(row)
    mask = torch.ones(tokens)

    def run():
        logprobs.grad = None
        ratio = torch.exp(torch.clamp(logprobs - old, -20, 20))
        plain, bounded = -advantages * ratio, -advantages * torch.clamp(ratio, 0.8, 1.28)
        worse = torch.maximum(plain, bounded)
        capped = torch.minimum(-advantages * 3.0, worse)
        loss = (torch.where(advantages < 0, capped, worse) * mask).sum() / mask.sum()
        metrics = ((bounded > plain) * mask).sum() / mask.sum(), ((old - logprobs.detach()) * mask).sum() / mask.sum()
        loss.backward()
        return loss.item(), metrics

    report(f"clipped loss, {tokens} tokens", tokens, "token/s", run)


def group_advantages(rows, size=8):
    scores = torch.rand(rows)

    def run():
        groups = scores.view(-1, size)
        return (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)

    report(f"group advantages, {rows} rewards in groups of {size}", rows, "row/s", run)


def logprob_and_entropy(rows, vocabulary):
    logits = 8 * (torch.rand(rows, vocabulary) - 0.5)
    targets = torch.randint(vocabulary, (rows, 1))

    def run():
        logp = torch.log_softmax(logits, -1)
        return logp.gather(1, targets), -(logp.exp() * logp).sum(-1)

    report(f"log-prob and entropy, {rows} x {vocabulary}", rows, "token/s", run)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=2**24)
    options = parser.parse_args()
    clipped_loss(options.tokens)
    group_advantages(2**20)
    logprob_and_entropy(512, 32768)
