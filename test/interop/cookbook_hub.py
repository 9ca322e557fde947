"""What recipes of the cookbook take from the hub, made here: a chat model, its tokenizer under the hub's names, and rows.

usage: cookbook_hub.py STORY_MODEL_FOLDER FOLDER

Writes FOLDER/model, the model of stories with ChatML's tokens and a longer context, and FOLDER/home, a cache (HF_HOME) in which the
names of NAMES are that model's tokenizer.
"""

import json
import shutil
import sys
from pathlib import Path

NAMES = (
    "Qwen/Qwen3.5-4B",
    "Qwen/Qwen3.5-9B",
    "Qwen/Qwen3.5-9B-Base",
    "Qwen/Qwen3.6-35B-A3B",
)
CHATML = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
CONTEXT = 8192


def write_model(stories, folder):
    """Adds ChatML's tokens. Their embeddings are the full stop's, so that a message may end where a sentence does."""
    from safetensors.numpy import load_file, save_file
    import numpy

    shutil.copytree(stories, folder, copy_function=shutil.copyfile)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    first = len(tokenizer["model"]["vocab"])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] += [{"id": first + i, "content": token, **flags} for i, token in enumerate(CHATML)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((folder / "config.json").read_text())
    config |= {"vocab_size": first + len(CHATML), "max_position_embeddings": CONTEXT}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    rows = weights["model.embed_tokens.weight"]
    stop = rows[tokenizer["model"]["vocab"]["."]]
    weights["model.embed_tokens.weight"] = numpy.concatenate([rows, numpy.tile(stop, (len(CHATML), 1))])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def write_home(model, home):
    for name in NAMES:
        repository = home / "hub" / f"models--{name.replace('/', '--')}"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text("local")
        shutil.copytree(model, repository / "snapshots" / "local", ignore=shutil.ignore_patterns("*.safetensors"))


if __name__ == "__main__":
    source, target = (Path(path) for path in sys.argv[1:3])
    write_model(source, target / "model")
    write_home(target / "model", target / "home")
