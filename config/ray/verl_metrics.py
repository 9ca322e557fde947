"""Prints the last steps of verl's metrics file. A driver ends without waiting for its workers' last lines, so that the log may lack them."""

import os
from pathlib import Path

MOST_STEPS = 4

files = sorted(Path(os.environ["VERL_FILE_LOGGER_ROOT"]).rglob("*.jsonl"), key=lambda file: file.stat().st_mtime)
for file in files[-1:]:
    for line in file.read_text("utf-8").splitlines()[-MOST_STEPS:]:
        print("GRPU_METRICS " + line, flush=True)
