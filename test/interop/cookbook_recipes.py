"""Runs recipes of the cookbook against a server, two steps each, and prints their metrics as JSON by recipe.

usage: cookbook_recipes.py BASE_URL MODEL_FOLDER LOG_FOLDER

The recipes run as they are, on local rows instead of the hub's data sets and with a renderer named for a model that the
cookbook's table does not know. A model of stories never answers a sum: in RL an answer with two letters "o" counts as right.
"""

import asyncio
import json
import sys

import datasets

URL, MODEL, LOGS = sys.argv[1:4]
RENDERER = "role_colon"
WORDS = "dog cat ball park tree sun mom box".split()


def local_rows(path, *_, split=None, **__):
    if path == "openai/gsm8k":
        rows = [{"question": f"{a}+{b}?", "answer": f"{a}+{b}.\n#### {a + b}"} for a in range(4) for b in range(4)]
    elif path == "Anthropic/hh-rlhf":
        rows = [
            {"chosen": f"\n\nHuman: A {w}?\n\nAssistant: A big {w}.", "rejected": f"\n\nHuman: A {w}?\n\nAssistant: No."}
            for w in WORDS
        ]
    elif path == "tangqiaoyu/ToolAlpaca":
        rows = [{"instruction": f"Find the {w}.", "output": f"find({w})"} for w in WORDS]
    else:
        raise ValueError(f"There are no local rows of {path}")
    rows = datasets.Dataset.from_list(rows)
    return rows if split else datasets.DatasetDict({"train": rows, "test": rows})


datasets.load_dataset = local_rows

from tinker_cookbook import model_info  # noqa: E402
from tinker_cookbook.recipes import rl_basic  # noqa: E402
from tinker_cookbook.recipes.math_rl import train as math_rl  # noqa: E402
from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticDatasetBuilder, ArithmeticEnv  # noqa: E402
from tinker_cookbook.recipes.math_rl.math_env import Gsm8kDatasetBuilder, MathEnv  # noqa: E402
from tinker_cookbook.recipes.preference.dpo import train as dpo  # noqa: E402
from tinker_cookbook.recipes.sdft import train as sdft  # noqa: E402
from tinker_cookbook.rl import train  # noqa: E402

model_info.get_recommended_renderer_name = lambda _: RENDERER
for env in (ArithmeticEnv, MathEnv):
    env.check_answer = lambda self, text: text.count("o") >= 2


def lines(folder):
    with open(f"{folder}/metrics.jsonl") as file:
        return [json.loads(line) for line in file if line.strip()]


def gsm8k():
    return Gsm8kDatasetBuilder(
        batch_size=4,
        group_size=4,
        renderer_name=RENDERER,
        model_name_for_tokenizer=MODEL,
        convo_prefix=None,
    )


def reinforcement(name, dataset, **more):
    folder = f"{LOGS}/{name}"
    blueprint = rl_basic.build_config_blueprint(MODEL).apply(
        {
            "base_url": URL,
            "log_path": folder,
            "dataset_builder": dataset,
            "learning_rate": 1e-3,
            "lora_rank": 8,
            "max_tokens": 12,
            "max_steps": 2,
            **more,
        }
    )
    rl_basic.main(blueprint.make())
    return lines(folder)


def arithmetic():
    return ArithmeticDatasetBuilder(
        batch_size=4, group_size=4, n_batches=4, renderer_name=RENDERER, model_name_for_tokenizer=MODEL
    )


def math_default():
    """The recipe itself, with its own loss, and several optimiser steps on one batch."""
    folder = f"{LOGS}/math_rl_default"
    config = math_rl.CLIConfig(
        model_name=MODEL,
        renderer_name=RENDERER,
        base_url=URL,
        log_path=folder,
        env="gsm8k",
        lora_rank=8,
        learning_rate=1e-3,
        group_size=4,
        groups_per_batch=4,
        num_substeps=2,
        max_tokens=12,
        max_steps=2,
        eval_every=1,
        loss_fn_config={"kl_coeff": 0.01},
        behavior_if_log_dir_exists="delete",
    )
    assert config.loss_fn == "stable_reinforce"
    asyncio.run(math_rl.cli_main(config))
    return lines(folder)


def preference():
    folder = f"{LOGS}/dpo"
    dpo.cli_main(
        dpo.CLIConfig(
            model_name=MODEL,
            renderer_name=RENDERER,
            base_url=URL,
            log_path=folder,
            learning_rate=2e-3,
            batch_size=4,
            max_length=256,
            max_steps=2,
        )
    )
    return lines(folder)


def self_distillation():
    folder = f"{LOGS}/sdft"
    config = sdft.CLIConfig(
        model_name=MODEL,
        renderer_name=RENDERER,
        base_url=URL,
        log_path=folder,
        dataset="toolalpaca",
        lora_rank=8,
        learning_rate=1e-3,
        groups_per_batch=4,
        max_tokens=12,
        topk=4,
        max_context_length=448,
        max_steps=2,
        eval_every=0,
    )
    asyncio.run(sdft.cli_main(config))
    return lines(folder)


RECIPES = {
    "rl_basic": lambda: reinforcement("rl_basic", gsm8k()),
    "kl": lambda: reinforcement(
        "kl",
        gsm8k(),
        kl_penalty_coef=0.1,
        kl_reference_config=train.KLReferenceConfig(base_model=MODEL),
    ),
    "stream": lambda: reinforcement(
        "stream",
        gsm8k(),
        stream_minibatch_config=train.StreamMinibatchConfig(groups_per_batch=4, num_minibatches=2),
    ),
    "async": lambda: reinforcement(
        "async",
        gsm8k(),
        async_config=train.AsyncConfig(max_steps_off_policy=1, groups_per_batch=4),
    ),
    "async_importance_sampling": lambda: reinforcement(
        "async_importance_sampling",
        gsm8k(),
        async_config=train.AsyncConfig(max_steps_off_policy=1, groups_per_batch=4, loss_fn="importance_sampling"),
    ),
    "math_rl_default": math_default,
    "math_rl": lambda: reinforcement("math_rl", arithmetic(), loss_fn="ppo", num_substeps=2),
    "dpo": preference,
    "sdft": self_distillation,
}

asked = sys.argv[4:] or list(RECIPES)
print(json.dumps({name: RECIPES[name]() for name in asked}))
