"""Logits of folders that `grpu export` wrote, by transformers and PEFT on the CPU, in float32.

Reads a list of {model, adapter?, tokens, generation?} from standard input; writes a list of {logits, ids, chat, eos}: the
logits of the last position, a text's ids and a conversation by the folder's own tokenizer, and its stop tokens.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

torch.set_num_threads(1)


def load(request):
    model = AutoModelForCausalLM.from_pretrained(request["model"], dtype=torch.float32)
    if not request.get("adapter"):
        return model.eval()
    from peft import PeftModel

    model = PeftModel.from_pretrained(model, request["adapter"])
    left = [name for name, value in model.named_parameters() if "lora_B" in name and not value.any()]
    assert not left, f"PEFT left these factors at zero: {left}"
    return model.eval()


def read(request):
    folder = request.get("adapter") or request["model"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = load(request)(torch.tensor([request["tokens"]])).logits[0, -1]
    return {
        "logits": logits.tolist(),
        "ids": tokenizer.encode("a b", add_special_tokens=False),
        "chat": tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False),
        "eos": GenerationConfig.from_pretrained(folder).eos_token_id if request.get("generation") else None,
    }


json.dump([read(request) for request in json.load(sys.stdin)], sys.stdout)
