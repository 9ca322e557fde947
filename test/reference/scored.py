"""Scores of folders that `grpu reward-model` wrote, by transformers and PEFT on the CPU, in float32.

Reads a list of {model, adapter?, sequences} from standard input; writes a list of {scores, fresh}: the scalar head's value at
the last token of each sequence, and the weights that transformers found in no file.
"""

import json
import sys

import torch
from transformers import AutoModelForSequenceClassification

torch.set_num_threads(1)


def load(request):
    # A base without a head gets a random one, which the adapter's files replace.
    model, info = AutoModelForSequenceClassification.from_pretrained(
        request["model"], num_labels=1, dtype=torch.float32, output_loading_info=True
    )
    fresh = sorted(info["missing_keys"])
    if not request.get("adapter"):
        return model.eval(), fresh
    from peft import PeftModel

    return PeftModel.from_pretrained(model, request["adapter"]).eval(), fresh


def read(request):
    model, fresh = load(request)
    with torch.no_grad():
        scores = [model(torch.tensor([tokens])).logits[0, 0].item() for tokens in request["sequences"]]
    return {"scores": scores, "fresh": fresh}


json.dump([read(request) for request in json.load(sys.stdin)], sys.stdout)
