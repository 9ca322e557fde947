"""The same work in plain PyTorch on the CPU, for comparison: a training step and batched sampling.

A Llama of the given sizes with random weights: one policy-gradient step (PPO clip, gradient clipping, AdamW) with all
weights trained and with LoRA, and sampling with a key-value cache. Prints one JSON object a line:
{"what": "train_full" | "train_lora" | "sample", "tokens_per_s", "ms" (median of a step), "spread_ms", ...}.
Without torch it prints {"skipped": why} and ends well. Checks its own results before it times them.

    python3 bench/peer_torch.py --batch 64 --length 128
"""

import argparse
import json
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as missing:
    print(json.dumps({"skipped": f"python3 has no PyTorch ({missing})"}))
    sys.exit(0)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Linear(nn.Module):
    """A matrix, with a low-rank addition when rank > 0."""

    def __init__(self, n_in, n_out, rank):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in) * n_in**-0.5, requires_grad=rank == 0)
        if rank:
            self.a = nn.Parameter(torch.randn(rank, n_in) * n_in**-0.5)
            self.b = nn.Parameter(torch.zeros(n_out, rank))
        self.rank = rank

    def forward(self, x):
        y = F.linear(x, self.weight)
        return y + 2.0 * F.linear(F.linear(x, self.a), self.b) if self.rank else y


class Layer(nn.Module):
    def __init__(self, size):
        super().__init__()
        c, d, r = size.hidden, size.head_dim, size.rank
        self.size = size
        self.norm1, self.norm2 = nn.RMSNorm(c, 1e-5), nn.RMSNorm(c, 1e-5)
        self.q, self.o = Linear(c, size.heads * d, r), Linear(size.heads * d, c, r)
        self.k, self.v = Linear(c, size.kv_heads * d, r), Linear(c, size.kv_heads * d, r)
        self.gate, self.up, self.down = Linear(c, size.mlp, r), Linear(c, size.mlp, r), Linear(size.mlp, c, r)

    def forward(self, x, cos, sin, cache, start):
        batch, length, _ = x.shape
        h = self.norm1(x)

        def heads(y, n):
            return y.view(batch, length, n, self.size.head_dim).transpose(1, 2)

        q = rotate(heads(self.q(h), self.size.heads), cos, sin)
        k = rotate(heads(self.k(h), self.size.kv_heads), cos, sin)
        v = heads(self.v(h), self.size.kv_heads)
        if cache is not None:
            cache[0][:, :, start : start + length] = k
            cache[1][:, :, start : start + length] = v
            k, v = cache[0][:, :, : start + length], cache[1][:, :, : start + length]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, -1))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size
        self.embed = nn.Parameter(torch.randn(size.vocab, size.hidden) * 0.02)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.hidden, 1e-5)
        if size.rank:
            for p in [self.embed, *self.norm.parameters()]:
                p.requires_grad_(False)
            for layer in self.layers:
                for p in [*layer.norm1.parameters(), *layer.norm2.parameters()]:
                    p.requires_grad_(False)
        angles = torch.outer(
            torch.arange(size.context).float(), 10000.0 ** (-torch.arange(0, size.head_dim, 2) / size.head_dim)
        )
        self.cos, self.sin = (f(torch.cat((angles, angles), -1)) for f in (torch.cos, torch.sin))

    def forward(self, tokens, caches=None, start=0):
        x = self.embed[tokens]
        stop = start + tokens.shape[1]
        cos, sin = self.cos[start:stop], self.sin[start:stop]
        for i, layer in enumerate(self.layers):
            x = layer(x, cos, sin, caches[i] if caches else None, start)
        return F.linear(self.norm(x), self.embed)

    def caches(self, batch, length):
        shape = (batch, self.size.kv_heads, length, self.size.head_dim)
        return [(torch.zeros(shape), torch.zeros(shape)) for _ in self.layers]


def logprobs_of(model, tokens):
    logits = model(tokens)[:, :-1]
    return torch.log_softmax(logits, -1).gather(-1, tokens[:, 1:, None])[..., 0]


def train_step(model, optimizer, tokens, old, advantages):
    ratio = torch.exp(logprobs_of(model, tokens) - old)
    loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    loss.backward()
    nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


@torch.inference_mode()
def sample(model, prompt, new_tokens):
    batch, length = prompt.shape
    caches = model.caches(batch, length + new_tokens)
    logits = model(prompt, caches)[:, -1]
    out = []
    for step in range(new_tokens):
        probs = torch.softmax(logits, -1)
        token = torch.multinomial(probs, 1)
        out.append(token)
        if step + 1 < new_tokens:
            logits = model(token, caches, length + step)[:, -1]
    return torch.cat(out, 1)


def compiled_for_sampling(model):
    # The prompt and the steps are two shapes; where a step stands is no shape.
    fast = torch.compile(model, dynamic=True)
    fast.caches = model.caches
    return fast


@torch.inference_mode()
def check_cache(model, tokens):
    """The cached pass must give the full pass's logits."""
    full = model(tokens)
    caches = model.caches(*tokens.shape)
    half = tokens.shape[1] // 2
    parts = [model(tokens[:, :half], caches)]
    parts += [model(tokens[:, i : i + 1], caches, i) for i in range(half, tokens.shape[1])]
    error = (torch.cat(parts, 1) - full).abs().max().item()
    assert error < 1e-3, f"the key-value cache changes the logits by {error}"


def compiled(model, tokens):
    fast = torch.compile(model)
    with torch.no_grad():
        error = (fast(tokens) - model(tokens)).abs().max().item()
    assert error < 1e-3, f"compiling changes the logits by {error}"
    return fast


def timed(run, seconds):
    """Times of runs, in ms, after one unmeasured run: at least three, then as many as fit."""
    run()
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def report(what, times, tokens, **more):
    ms = statistics.median(times)
    line = {"what": what, "tokens_per_s": round(tokens / ms * 1e3), "ms": round(ms, 2)}
    line["spread_ms"] = round(max(times) - min(times), 2)
    print(json.dumps({**line, "runs": len(times), **more}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    defaults = dict(hidden=64, layers=5, heads=8, kv_heads=4, head_dim=8, mlp=172, vocab=512, batch=64, length=128)
    defaults.update(prompt=8, new_tokens=120, rank=8, threads=torch.get_num_threads(), seconds=1)
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--compile", action="store_true", help="compile the model, after a check against eager")
    args = parser.parse_args()
    args.context = max(args.length, args.prompt + args.new_tokens)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    tokens = torch.randint(args.vocab, (args.batch, args.length))
    about = {"torch": torch.__version__, "threads": args.threads, "batch": args.batch, "length": args.length}
    lora_rank = args.rank
    for what, rank in (("train_full", 0), ("train_lora", lora_rank)):
        args.rank = rank
        model = Model(args)
        trained = [p for p in model.parameters() if p.requires_grad]
        if args.compile:
            model = compiled(model, tokens)
        optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
        advantages = torch.randn(args.batch, 1)
        with torch.no_grad():
            old = logprobs_of(model, tokens)
        first = train_step(model, optimizer, tokens, old, advantages)
        second = train_step(model, optimizer, tokens, old, advantages)
        assert second < first, f"a step did not lower the loss: {first} to {second}"
        times = timed(lambda: train_step(model, optimizer, tokens, old, advantages), args.seconds)
        report(what, times, tokens.numel(), trained=sum(p.numel() for p in trained), **about)
    args.rank = 0
    model = Model(args)
    check_cache(model, tokens[:4, : min(32, args.length)])
    if args.compile:
        model = compiled_for_sampling(model)
    prompt = tokens[:, : args.prompt]
    times = timed(lambda: sample(model, prompt, args.new_tokens), args.seconds)
    report("sample", times, args.batch * args.new_tokens, new_tokens=args.new_tokens, **about)


main()
