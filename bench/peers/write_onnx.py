"""Writes a model folder as transformers.js reads it, in float32, with onnxruntime-genai's builder.

    python3 bench/peers/write_onnx.py --model DIR --out DIR
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import skip, tell

try:
    import onnx
    from onnxruntime_genai.models import builder
except ImportError as missing:
    skip(f"python3 has no onnx and onnxruntime-genai ({missing})")

parser = argparse.ArgumentParser()
parser.add_argument("--model", type=Path, required=True)
parser.add_argument("--out", type=Path, required=True)
args = parser.parse_args()

config = json.loads((args.model / "config.json").read_text())
width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
with tempfile.TemporaryDirectory() as built:
    run = [sys.executable, "-m", builder.__name__]
    command = ["-i", args.model, "-o", built, "-p", "fp32", "-e", "cpu", "-c", built]
    subprocess.run([*run, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    model = onnx.load(Path(built) / "model.onnx")
# transformers.js makes the empty caches of a prompt by these shapes, and knows no name of this size.
for value in [*model.graph.input, *model.graph.output]:
    for size in value.type.tensor_type.shape.dim:
        if size.dim_param == "kv_cache_dim":
            size.dim_value = width
(args.out / "onnx").mkdir(parents=True)
shutil.copy(args.model / "config.json", args.out)
file = args.out / "onnx" / "model.onnx"
onnx.save_model(model, file, save_as_external_data=True, location="model.onnx_data", size_threshold=0)
tell(written=str(file))
