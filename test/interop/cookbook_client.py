"""Runs the cookbook's minimal loops against a server and prints their metrics as JSON.

usage: cookbook_client.py BASE_URL MODEL_FOLDER LOG_FOLDER

The recipes run as they are, but for what they would fetch: local rows instead of the hub's data sets, and a renderer
named for a model that the cookbook's table does not know. `rl_loop` runs with each of its losses, of which stable_reinforce is the
default. The reward of the RL recipe asks for boxed answers, which a model of stories never gives: here it is the share of a letter.
"""

import json
import random
import sys

import datasets
from tinker_cookbook import model_info
from tinker_cookbook.recipes import rl_loop, sl_loop

URL, MODEL, LOGS = sys.argv[1:4]
WORDS = "dog cat ball park tree sun mom box red big".split()


def rows_for(name, *_):
    draw = random.Random(0)
    if "no_robots" in name:
        rows = [
            {
                "messages": [
                    {"role": "user", "content": f"Tell me of the {word}."},
                    {"role": "assistant", "content": f"The {word} was happy. The {word} went home."},
                ]
            }
            for word in (draw.choice(WORDS) for _ in range(48))
        ]
    else:
        rows = [{"question": f"{a}+{b}?", "answer": f"#### {a + b}"} for a in range(4) for b in range(6)]
    return datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)})


datasets.load_dataset = rows_for
model_info.get_recommended_renderer_name = lambda _: "role_colon"
rl_loop.get_reward = lambda response, _: response.count("o") / 24

def supervised(max_steps):
    sl_loop.main(
        sl_loop.Config(
            base_url=URL,
            model_name=MODEL,
            log_path=f"{LOGS}/sl",
            batch_size=8,
            learning_rate=2e-3,
            max_length=256,
            max_steps=max_steps,
            save_every=2,
        )
    )


def lines(path):
    with open(path) as file:
        return [json.loads(line) for line in file if line.strip()]


supervised(5)
# As if the run had been killed: the next run in the folder resumes at the last checkpoint.
kept = [row for row in lines(f"{LOGS}/sl/checkpoints.jsonl") if row["name"] != "final"]
with open(f"{LOGS}/sl/checkpoints.jsonl", "w") as file:
    file.writelines(json.dumps(row) + "\n" for row in kept)
supervised(6)


def reinforcement(loss_fn, max_steps):
    rl_loop.main(
        rl_loop.Config(
            base_url=URL,
            model_name=MODEL,
            log_path=f"{LOGS}/rl-{loss_fn}",
            loss_fn=loss_fn,
            batch_size=4,
            group_size=8,
            learning_rate=4e-3,
            max_tokens=24,
            max_steps=max_steps,
        )
    )


DEFAULT = rl_loop.Config().loss_fn
LOSSES = {"importance_sampling": 5, DEFAULT: 5, "cispo": 2, "gspo": 2}
for loss_fn, max_steps in LOSSES.items():
    reinforcement(loss_fn, max_steps)

print(
    json.dumps(
        {
            "sl": lines(f"{LOGS}/sl/metrics.jsonl"),
            "sl_checkpoints": lines(f"{LOGS}/sl/checkpoints.jsonl"),
            "rl": {loss: lines(f"{LOGS}/rl-{loss}/metrics.jsonl") for loss in LOSSES},
            "rl_checkpoints": {loss: lines(f"{LOGS}/rl-{loss}/checkpoints.jsonl") for loss in LOSSES},
        }
    )
)
