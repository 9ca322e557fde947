"""transformers' `generate` on the CPU in float32: the greedy tokens, then decoding of one row and sampling of many (none with `--batch 1`).

    python3 bench/peers/hf_generate.py --model DIR --prompt 1,403 --batch 64 --new-tokens 120 --greedy 32 --threads 2
"""

from timing import options, skip, tell, timed

try:
    import torch
    import transformers
except ImportError as missing:
    skip(f"python3 has no transformers and PyTorch ({missing})")

args = options()
torch.set_num_threads(args.threads)
transformers.logging.set_verbosity_error()
model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
model.generation_config = transformers.GenerationConfig(pad_token_id=0)


@torch.inference_mode()
def generate(rows, count, **how):
    prompt = torch.tensor([args.prompt] * rows)
    mask = torch.ones_like(prompt)
    out = model.generate(prompt, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, **how)
    assert out.shape == (rows, len(args.prompt) + count), out.shape
    return out[:, len(args.prompt) :]


tell(greedy=generate(1, args.greedy, do_sample=False)[0].tolist(), version=transformers.__version__)
timed("decode", lambda: generate(1, args.new_tokens, do_sample=False), args.new_tokens, args.seconds)
many = dict(do_sample=True, temperature=1.0, top_k=0, top_p=1.0)
if args.batch > 1:
    timed("sample", lambda: generate(args.batch, args.new_tokens, **many), args.batch * args.new_tokens, args.seconds)
