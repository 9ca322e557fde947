"""Logits of a folder that `grpu export` wrote, by transformers and PEFT on the CPU, in float32.

Reads {model, adapter?, tokens} from standard input; writes {logits, files, tokens} to standard output: the logits of the
last position, and the ids of an encoded text by the folder's own tokenizer.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

torch.set_num_threads(1)
request = json.load(sys.stdin)
model = AutoModelForCausalLM.from_pretrained(request["model"], dtype=torch.float32)
if request.get("adapter"):
    from peft import PeftModel

    model = PeftModel.from_pretrained(model, request["adapter"])
    left = [name for name, value in model.named_parameters() if "lora_B" in name and not value.any()]
    assert not left, f"PEFT left these factors at zero: {left}"
with torch.no_grad():
    logits = model.eval()(torch.tensor([request["tokens"]])).logits[0, -1]
folder = request.get("adapter") or request["model"]
tokenizer = AutoTokenizer.from_pretrained(folder)
chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
json.dump(
    {
        "logits": logits.tolist(),
        "ids": tokenizer.encode("a b", add_special_tokens=False),
        "chat": chat,
        "eos": GenerationConfig.from_pretrained(folder).eos_token_id if request.get("generation") else None,
    },
    sys.stdout,
)
