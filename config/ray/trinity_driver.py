"""Runs Trinity-RFT 0.6 on a configuration. Raises what Trinity itself only logs: `trinity run` ends with 0 after a crash."""

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


def main(path):
    config = load_config(path)
    config.check_and_update()
    print(f"Total training steps: {config.buffer.total_steps or 0}", flush=True)
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


if __name__ == "__main__":
    main(sys.argv[1])
