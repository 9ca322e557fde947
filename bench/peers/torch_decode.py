"""A Qwen2 model in plain PyTorch on the CPU, in float32 or (--bfloat16) in that: greedy tokens, then decoding of one row with a cache.

    python3 bench/peers/torch_decode.py --model DIR --prompt 1,403 --batch 1 --new-tokens 32 --greedy 16 --threads 2
"""

import json
from pathlib import Path

from timing import options, skip, tell, timed

try:
    import torch
    import torch.nn.functional as F
    from safetensors.torch import load_file
except ImportError as missing:
    skip(f"python3 has no PyTorch and safetensors ({missing})")

args = options()
torch.set_num_threads(args.threads)
folder = Path(args.model)
config = json.loads((folder / "config.json").read_text())
if config["model_type"] != "qwen2" or not config["tie_word_embeddings"]:
    skip(f"{config['model_type']} is no Qwen2 model with a tied head")
dtype = torch.bfloat16 if args.bfloat16 else torch.float32
weights = {name: tensor.to(dtype) for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
embedding, last_norm = weights["model.embed_tokens.weight"], weights["model.norm.weight"]
heads, key_heads, hidden = (config[key] for key in ("num_attention_heads", "num_key_value_heads", "hidden_size"))
width = hidden // heads
length = len(args.prompt) + max(args.new_tokens, args.greedy)
theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
angles = torch.outer(torch.arange(length).float(), theta ** (-torch.arange(0, width, 2).float() / width))
cos, sin = (f(torch.cat((angles, angles), -1)).to(dtype) for f in (torch.cos, torch.sin))


def norm(x, weight):
    return F.rms_norm(x, (hidden,), weight, config["rms_norm_eps"])


def rotate(x, at):
    half = width // 2
    return x * cos[at] + torch.cat((-x[..., half:], x[..., :half]), -1) * sin[at]


def attend(x, w, cache, at):
    def project(name, count):
        y = F.linear(x, w[f"self_attn.{name}_proj.weight"], w[f"self_attn.{name}_proj.bias"])
        return y.view(-1, count, width).transpose(0, 1)

    q, k, v = project("q", heads), project("k", key_heads), project("v", key_heads)
    keys, values = cache
    keys[:, at], values[:, at] = rotate(k, at), v
    keys, values = keys[:, : at.stop], values[:, : at.stop]
    is_prompt = at.stop - at.start > 1
    y = F.scaled_dot_product_attention(
        rotate(q, at)[None], keys[None], values[None], is_causal=is_prompt, enable_gqa=True
    )[0]
    return F.linear(y.transpose(0, 1).reshape(-1, hidden), w["self_attn.o_proj.weight"])


def mlp(x, w):
    active = F.silu(F.linear(x, w["mlp.gate_proj.weight"])) * F.linear(x, w["mlp.up_proj.weight"])
    return F.linear(active, w["mlp.down_proj.weight"])


def layer_of(index):
    start = f"model.layers.{index}."
    return {name.removeprefix(start): weight for name, weight in weights.items() if name.startswith(start)}


layers = [layer_of(index) for index in range(config["num_hidden_layers"])]


def forward(tokens, caches, at):
    x = embedding[tokens]
    for w, cache in zip(layers, caches):
        x = x + attend(norm(x, w["input_layernorm.weight"]), w, cache, at)
        x = x + mlp(norm(x, w["post_attention_layernorm.weight"]), w)
    return F.linear(norm(x[-1:], last_norm), embedding)[0]


@torch.inference_mode()
def generate(count):
    shape = (key_heads, length, width)
    caches = [(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)) for _ in layers]
    logits, found, end = forward(torch.tensor(args.prompt), caches, slice(0, len(args.prompt))), [], len(args.prompt)
    while True:
        found.append(int(logits.argmax()))
        if len(found) == count:
            return found
        logits = forward(torch.tensor(found[-1:]), caches, slice(end, end + 1))
        end += 1


tell(greedy=generate(args.greedy), version=torch.__version__)
timed("decode", lambda: generate(args.new_tokens), args.new_tokens, args.seconds)
