"""Runs Trinity-RFT 0.6 on a configuration. Raises where Trinity itself ends with status 0: after a crash, and before its last step."""

import json
import re
import sys
from pathlib import Path

from trinity.cli.launcher import run_stage
from trinity.common.config import load_config

# Explorer and trainer log these before they leave their loops, and the run goes on to its end.
CAUGHT = ("Error in Explorer:", "Error in Trainer:")
PREFIX = re.compile(r"^[A-Z]+ \d\d-\d\d [\d:]+ \[[^\]]+\] ")


def logs(config):
    """The log files of explorer and trainer, in the folder that the cluster shares."""
    return sorted(Path(config.log.save_dir).rglob("*.log"))


def caught_error(file, start):
    """The error under the first of CAUGHT after `start` bytes; None where there is none."""
    where = None
    with open(file, "rb") as lines:
        lines.seek(start)
        for line in lines:
            text = PREFIX.sub("", line.decode("utf-8", "replace").rstrip())
            if where is None:
                where = next((each for each in CAUGHT if text.startswith(each)), None)
            elif text and not text.startswith((" ", "Traceback")):
                return f"{where} {text}"
    return where


def total_steps(config):
    """0 for a benchmark, which takes the checkpoints that it finds."""
    part = {"bench": None, "explore": config.buffer}.get(config.mode, config.trainer)
    return (part and part.total_steps) or 0


def saved_step(config):
    """The step of the newest saved state. Trainer and explorer save when they end, also when they run out of rollouts."""
    name = config.explorer.name if config.mode == "explore" else config.trainer.name
    file = Path(config.checkpoint_job_dir, f"{name}_meta.json")
    return json.loads(file.read_text("utf-8"))["latest_iteration"] if file.exists() else 0


def check_end(config):
    """Raises for a run that ended before its last step, and prints the step that it reached."""
    total, saved = total_steps(config), saved_step(config)
    if saved >= total:
        return print(f"Trinity reached step {saved}", flush=True)
    text = f"Trinity stopped without an error, and the newest saved step is {saved} of {total}."
    if config.mode in ("both", "colocate"):
        # The explorer is at its end: only further steps of its own give the trainer the rest.
        more = (config.buffer.total_steps or total) + total - saved
        text += " Its trainer lacked rollouts, or was not done synchronizer.sync_timeout after its explorer. To train the rest, "
        text += f"run the same command with trinity.buffer.total_steps={more} trinity.trainer.total_steps={total}."
    raise RuntimeError(text)


def main(path):
    config = load_config(path)
    config.check_and_update()
    print(f"Total training steps: {total_steps(config)}", flush=True)
    print(f"Trinity runs in mode {config.mode}, with checkpoints in {config.checkpoint_job_dir}", flush=True)
    before = {file: file.stat().st_size for file in logs(config)}
    status = run_stage(config)
    if not status.success:
        lines = str(status.error.message).strip().splitlines() or [status.error.type_name]
        raise RuntimeError(f"Trinity's stage {status.stage} failed: {lines[-1]}")
    for file in logs(config):
        error = caught_error(file, before.get(file, 0))
        if error is not None:
            raise RuntimeError(f"Trinity stopped before its end. {error}")
    check_end(config)


if __name__ == "__main__":
    main(sys.argv[1])
