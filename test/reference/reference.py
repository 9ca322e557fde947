"""The published implementation's figures for a model with random weights: transformers and PEFT on the CPU, in float32.

Reads a request (JSON, see reference.ts) from standard input and writes into the folder `out`:

    model/              config.json and safetensors in the request's dtype
    adapter/            a PEFT adapter with random factors, where the request has `lora`
    expected.safetensors
        logprobs        [targets] log-probability of each masked token, all sequences end to end
        greedy          tokens that follow the first sequence's prompt, by argmax
        loss            the request's loss, a scalar
        grad.NAME       its gradient by each trained tensor
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights
from transformers.utils import logging as transformers_logging

torch.set_num_threads(2)
transformers_logging.disable_progress_bar()


def main():
    request = json.load(sys.stdin)
    out = Path(request["out"])
    torch.manual_seed(request["seed"])
    dtype = getattr(torch, request["dtype"])
    random_model(request["config"]).to(dtype).save_pretrained(out / "model")
    # Read back, because converting a model rounds its rotary frequencies too.
    model = AutoModelForCausalLM.from_pretrained(out / "model", dtype=torch.float32, attn_implementation="sdpa").eval()
    replace_weights(model, request.get("quantization"))
    trained = model
    if request.get("lora"):
        trained = with_adapter(model, request["lora"], out / "adapter")
    rows = [torch.tensor(row) for row in request["sequences"]]
    masks = [torch.tensor(mask, dtype=torch.bool) for mask in request["masks"]]
    expected = {"greedy": greedy(trained, rows[0], request["greedy"])}
    if request["gradients"]:
        expected |= gradients(trained, rows, masks, request)
    else:
        with torch.no_grad():
            expected["logprobs"] = torch.cat([logprobs(trained, *it) for it in zip(rows, masks)])
    save_file({name: value.detach().contiguous() for name, value in expected.items()}, out / "expected.safetensors")


def random_model(keys):
    """Weights of such sizes that activations stay near 1 and each token's distribution is far from uniform."""
    config = AutoConfig.for_model(**keys)
    with no_init_weights(), torch.no_grad():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.tie_weights()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("norm.weight"):
                value.normal_(0.0 if config.model_type.startswith("gemma") else 1.0, 0.1)
            elif name.endswith("bias"):
                value.normal_(0.0, 0.1)
            else:
                value.normal_(0.0, value.shape[-1] ** -0.5)
    return model


NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip


def replace_weights(model, quantization):
    """The layers' matrices as they are after a round trip through blocks of 64 (QLoRA's nf4, or symmetric int8)."""
    if quantization is None:
        return
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("_proj.weight"):
                value.copy_(round_trip(value.reshape(-1, 64), quantization).reshape(value.shape))


def round_trip(blocks, quantization):
    largest = blocks.abs().amax(dim=1, keepdim=True)
    if quantization == "int8":
        scales = largest / 127
        # In float64, where a half is a half: weights in bfloat16 often are half of their block's largest.
        return (blocks.double() / scales.double()).round() * scales
    levels = torch.tensor(NF4)
    nearest = torch.bucketize(blocks / largest, (levels[1:] + levels[:-1]) / 2)
    return levels[nearest] * largest


def with_adapter(model, lora, folder):
    from peft import LoraConfig, get_peft_model

    trained = get_peft_model(
        model,
        LoraConfig(
            r=lora["rank"],
            lora_alpha=lora["alpha"],
            target_modules=lora["targets"],
            lora_dropout=0.0,
            task_type="CAUSAL_LM",
        ),
    )
    with torch.no_grad():
        for name, value in trained.named_parameters():
            if "lora_" in name:
                value.copy_(torch.randn_like(value) / value.shape[-1] ** 0.5 * lora["deviation"])
    trained.save_pretrained(folder)
    return trained.eval()


def logprobs(model, row, mask):
    """log p of each masked token but the first. Only those positions are multiplied by the output matrix."""
    at = mask[1:].nonzero()[:, 0]
    logits = model(row[None], logits_to_keep=at, use_cache=False).logits[0]
    return logits.float().log_softmax(-1).gather(-1, row[1:][at][:, None])[:, 0]


def greedy(model, prompt, count):
    tokens = prompt
    with torch.no_grad():
        for _ in range(count):
            tokens = torch.cat([tokens, model(tokens[None], logits_to_keep=1).logits[0, -1].argmax()[None]])
    return tokens[len(prompt) :].to(torch.int32)


def gradients(model, rows, masks, request):
    current = torch.cat([logprobs(model, *it) for it in zip(rows, masks)])
    loss = objective(current, request.get("policy_loss"))
    loss.backward()
    found = {"logprobs": current, "loss": loss.reshape(1)}
    for name, value in model.named_parameters():
        if value.requires_grad and value.grad is not None:
            name = name.replace("base_model.model.", "").replace(".default.", ".")
            found[f"grad.{name}"] = value.grad
    return found


def objective(current, policy):
    """The negative likelihood, or PPO's clipped surrogate averaged over tokens."""
    if policy is None:
        return -current.sum()
    old = current.detach() + torch.tensor(policy["shift"])
    advantages = torch.tensor(policy["advantages"])
    ratio = (current - old).exp()
    clipped = ratio.clamp(1 - policy["clip"], 1 + policy["clip"])
    return torch.maximum(-advantages * ratio, -advantages * clipped).mean()


main()
