# What .ci/run and scripts/nightly share: steps and suites that are counted, and what they need of other ecosystems.
export CI=true REQUIRE_GPU=1 NO_COLOR=1

# Not a dependency: it is large, and whoever uses Deno has it.
deno=(npx --yes deno@2.9.5)

passed=0 failed=0 skipped=0 broken=()
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# step NAME COMMAND...: runs it and counts it as one.
step() {
  local name=$1 started=$SECONDS
  shift
  printf '\n=== %s\n' "$name"
  if "$@" </dev/null; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    broken+=("$name")
  fi
  printf '=== %s: %d s\n' "$name" $((SECONDS - started))
}

# suite NAME COMMAND...: the same for a vitest run, whose tests it counts (p, f, s) and whose failures and skips it names at the end.
suite() {
  local name=$1 report counts
  report="$results/$(tr -c 'a-z0-9\n' - <<<"$name").json"
  shift
  step "$name" "$@" --reporter=default --reporter=json --outputFile.json="$report"
  if counts=$(node scripts/report.mjs "$report" "$results/failed") && [ "${counts%% *}" -gt 0 ]; then
    read -r p f s <<<"$counts"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  else
    echo "$name ran no test"
    p=0 f=1 s=0 failed=$((failed + 1))
  fi
}

# skip WHY: counts what this machine cannot run.
skip() {
  echo "skipped: $1"
  skipped=$((skipped + 1))
}

# Prints the closing line. Status 1 if something failed.
finish() {
  local name
  [ -s "$results/failed" ] && printf '\nFailed tests:\n' && cat "$results/failed"
  for name in "${broken[@]:-}"; do
    [ -n "$name" ] && printf 'failed: %s\n' "$name"
  done
  printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  [ "$failed" -eq 0 ]
}
