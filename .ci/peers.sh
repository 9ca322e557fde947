# What our files and figures are compared with, in Python. All is optional: tests without it are skipped and counted.

# Of the fast and slow tests: PyTorch's reader of safetensors, readers of our logs, of GGUF files (and llama.cpp itself), Hydra
# with verl's configuration trees, and one commit of rLLM's repository.
peers_of_tests() {
  if python3 -c 'import torch' 2>/dev/null; then
    python3 -m pip install --quiet --target .cache/python --no-deps safetensors==0.8.0 2>/dev/null &&
      export PYTHONPATH=$PWD/.cache/python${PYTHONPATH:+:$PYTHONPATH}
  fi
  # The packages of these readers must not meet those above.
  environment loggers tensorboard==2.21.0 wandb==0.31.0
  environment gguf gguf==0.19.0 xllamacpp==2026.10.11549
  environment verl/python hydra-core==1.3.8 omegaconf==2.3.1 &&
    for version in 0.9.1 0.8.0; do
      .cache/verl/python/bin/python -m pip download --quiet --no-deps --dest .cache/verl "verl==$version" 2>/dev/null
    done
  # Two published models, for tests alone.
  node scripts/fetch_models.mjs >/dev/null 2>&1
  commit rllm-org/rllm 9beb6e0f676a46d38858991fd79ac5f8e0b16d4c rllm
}

# environment FOLDER PACKAGES...: a Python environment of its own in .cache/FOLDER.
environment() {
  local folder=.cache/$1
  shift
  python3 -m venv "$folder" 2>/dev/null && nice -n 19 "$folder/bin/python" -m pip install --quiet "$@" 2>/dev/null
}

# commit REPOSITORY COMMIT FOLDER: one commit of a public repository in .cache/FOLDER, where it can be reached.
commit() {
  local folder=.cache/$3
  [ -e "$folder/.git" ] && git -C "$folder" rev-parse --quiet --verify HEAD >/dev/null && return
  (git init --quiet "$folder" && cd "$folder" &&
    timeout 120 git fetch --quiet --depth 1 "https://github.com/$1" "$2" 2>/dev/null &&
    git checkout --quiet FETCH_HEAD)
}
