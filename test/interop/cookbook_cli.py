"""Runs recipes of the cookbook as `python -m RECIPE FLAGS` does, two steps each, and prints their metrics as JSON by name.

usage: cookbook_cli.py STORY_MODEL_FOLDER LOG_FOLDER [NAME...]

Environment: TINKER_BASE_URL, and HF_HOME as cookbook_hub.py writes it. The recipes are unchanged, and so are the names of models in
them; only the hub's data sets are local rows, and where a model of stories would never earn a reward, letters "o" do. All run in one
process, because their imports take longer than their steps.
"""

import csv
import io
import json
import runpy
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import datasets

STORIES, LOGS, ASKED = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
BASE = "Qwen/Qwen3.5-9B-Base"
CHAT = "Qwen/Qwen3.5-9B"
WORDS = "dog cat ball park tree sun mom box".split()
CHATS = [
    {
        "messages": [
            {"role": "user", "content": f"Tell me of the {word}."},
            {"role": "assistant", "content": f"The {word} was happy."},
        ]
    }
    for word in WORDS * 2
]
ROWS = {
    "HuggingFaceH4/no_robots": CHATS,
    "allenai/tulu-3-sft-mixture": CHATS,
    "zwhe99/DeepMath-103K": [{"question": f"Tell me of the {word}."} for word in WORDS],
    "open-thoughts/OpenThoughts3-1.2M": [
        {"conversations": [{"from": "human", "value": f"A {word}?"}, {"from": "gpt", "value": f"A big {word}."}]}
        for word in WORDS
    ],
    "Anthropic/hh-rlhf": [
        {"chosen": f"\n\nHuman: A {w}?\n\nAssistant: A big {w}.", "rejected": f"\n\nHuman: A {w}?\n\nAssistant: No."}
        for w in WORDS
    ],
    "openai/gsm8k": [{"question": f"{i}+1?", "answer": f"{i}.\n#### {i + 1}"} for i in range(4)],
}


def local_rows(path, *_, split=None, streaming=False, **__):
    rows = datasets.Dataset.from_list(ROWS[path])
    if streaming:
        return rows.to_iterable_dataset()
    return rows if split else datasets.DatasetDict({"train": rows, "test": rows})


datasets.load_dataset = local_rows


def markets():
    """The table of `forecasting`: events that closed before its split date, and some that opened after it."""
    path = LOGS / "markets.csv"
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        columns = "submission_id event_ticker category title snapshot_time close_time markets market_outcome sources"
        rows.writerow(columns.split())
        for i in range(12):
            month = "09" if i < 8 else "11"
            opens, closes = f"2025-{month}-01T00:00:00Z", f"2025-{month}-02T00:00:00Z"
            outcome, sources = json.dumps({"Yes": i % 2}), json.dumps([{"title": "A", "summary": "B"}])
            rows.writerow([f"s{i}", f"e{i}", "c", f"Event {i}", opens, closes, '["Yes"]', outcome, sources])
    return path


def chats():
    path = LOGS / "chats.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in CHATS))
    return path


def reward_letters():
    from tinker_cookbook.recipes.multiplayer_rl.guess_number import env

    turn_of = env.GuessNumberEnv._get_user_turn
    env.GuessNumberEnv._get_user_turn = lambda self, text: (turn_of(self, text)[0], text.count("o") / 16)


reward_letters()
LOGS.mkdir(exist_ok=True)
SMALL = ["max_steps=2", "lora_rank=8"]
GROUPS = ["groups_per_batch=2", "group_size=2"]
RECIPES = {
    "chat_sl": ["chat_sl.train", f"model_name={BASE}", "batch_size=4", "learning_rate=1e-3", "eval_every=1", *SMALL],
    "prompt_distillation": [
        *["prompt_distillation.train", "model_name=Qwen/Qwen3.6-35B-A3B", "behavior_if_log_dir_exists=delete", f"file_path={chats()}"],
        *["batch_size=4", "learning_rate=1e-3", *SMALL],
    ],
    "off_policy": [
        *["distillation.off_policy_reasoning", f"model_name={CHAT}", "batch_size=4"],
        *["buffer_size=8", "max_prompts=8", *SMALL],
    ],
    "on_policy": [
        *["distillation.on_policy_distillation", f"model_name={BASE}", f"teacher_model={CHAT}", "teacher_checkpoint=TEACHER"],
        *["groups_per_batch=4", "max_tokens=12", "compute_post_kl=True", "kl_discount_factor=0.9", *SMALL],
    ],
    "multi_teacher": [
        *["distillation.on_policy_multi_teacher", f"model_name={BASE}", f"deepmath_teacher_model={CHAT}"],
        *["tulu3_teacher_model=Qwen/Qwen3.5-4B", "tulu3_teacher_checkpoint=TEACHER", "deepmath_groups_per_batch=2", "tulu3_groups_per_batch=2"],
        *["max_tokens=12", *SMALL],
    ],
    "guess_number": [
        *["multiplayer_rl.guess_number.train", f"model_name={BASE}", "renderer_name=role_colon"],
        *["group_size=2", "batch_size=1", "max_tokens=8", "max_steps=2", "eval_every=0"],
    ],
    "forecasting": [
        *["forecasting.train", f"model_name={CHAT}", "renderer_name=qwen3_5", f"data_path={markets()}", *GROUPS],
        *["validation_group_size=2", "max_tokens=16", "eval_every=1", *SMALL],
    ],
    "decisions": [
        *["decisions.forecasting", f"model_name={CHAT}", f"data_path={markets()}", "batch_size=4", "save_every=1"],
        *SMALL,
    ],
    "true_thinking_score": ["true_thinking_score.analyze", "n_problems=2", "dataset=gsm8k", "max_tokens=24"],
    "rlhf": [
        *["preference.rlhf.rlhf_pipeline", f"base_model={BASE}", "short_name=tiny", "batch_size=2"],
        *["rl_max_tokens=8", "rl_group_size=2", "eval_every=0", *SMALL],
    ],
}
# Where they take no log_path.
FOLDERS = {"rlhf": "rlhf-tiny/rl", "true_thinking_score": None}


def run(name):
    module, *flags = (flag.replace("TEACHER", TEACHER) for flag in RECIPES[name])
    module = f"tinker_cookbook.recipes.{module}"
    folder = FOLDERS.get(name, name)
    sys.argv = [module, *flags, *([f"log_path={LOGS / name}"] if name not in FOLDERS else [])]
    started = time.time()
    with redirect_stdout(io.StringIO()):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    print(f"{name}: {time.time() - started:.1f} s", file=sys.stderr)
    if folder is None:
        return []
    return lines(LOGS / folder / "metrics.jsonl")


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def trained_teacher():
    """The teacher of the distillation: what a recipe saved, as its user would name it."""
    run("prompt_distillation")
    return lines(LOGS / "prompt_distillation" / "checkpoints.jsonl")[-1]["sampler_path"]


def weights_of(name):
    """A training checkpoint, downloaded encrypted and merged by the cookbook, next to the same weights at the server."""
    import tinker
    import torch
    from tinker_cookbook import weights
    from transformers import AutoModelForCausalLM

    client = tinker.ServiceClient()
    # The embeddings are tied: the cookbook merges no adapter of the head into them.
    training = client.create_lora_training_client(base_model=CHAT, rank=8, train_unembed=False).result()
    ids = training.get_tokenizer().encode("Once upon a time, there was a cat.")
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)},
    )
    for _ in range(2):
        training.forward_backward([datum], "cross_entropy")
        training.optim_step(tinker.AdamParams(learning_rate=1e-2)).result()
    state = training.save_state("state").result().path
    sampler = training.save_weights_for_sampler("sampler").result().path
    folder = weights.download(tinker_path=state, output_dir=str(LOGS / name / "adapter"))
    merged = str(LOGS / name / "merged")
    weights.build_hf_model(base_model=STORIES, adapter_path=folder, output_path=merged)
    served = client.create_sampling_client(model_path=sampler).compute_logprobs(tinker.ModelInput.from_ints(ids)).result()
    difference = []
    for model in (merged, STORIES):
        logits = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)(torch.tensor([ids])).logits[0]
        logprobs = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
        difference.append(max(abs(a - b) for a, b in zip(logprobs, served[1:])))
    return {"merged": difference[0], "base": difference[1]}


TEACHER = ""
TEACHER = trained_teacher()
print(json.dumps({name: weights_of(name) if name == "weights" else run(name) for name in ASKED or [*RECIPES, "weights"]}))
