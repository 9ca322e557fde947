/** What the peers in JavaScript share, as `timing.py` does for those in Python. */
import { createRequire } from "node:module";
import { join } from "node:path";

/** Their packages are no dependencies: they are looked up in `PEER_MODULES`, else beside this repository's own. */
const from = process.env.PEER_MODULES ? join(process.env.PEER_MODULES, "index.js") : import.meta.url;

export function require(name) {
  try {
    return createRequire(from)(name);
  } catch (error) {
    skip(`no package ${name} (${error.code ?? error.message})`);
  }
}

export function tell(line) {
  console.log(JSON.stringify(line));
}

export function skip(why) {
  tell({ skipped: why });
  process.exit(0);
}

/** The rate at the median of at least two runs after an unmeasured one, and then as many as fit into a second. */
export async function timed(what, run, amount) {
  await run();
  const seconds = [];
  const end = performance.now() + 1000;
  while (seconds.length < 2 || performance.now() < end) {
    const start = performance.now();
    await run();
    seconds.push((performance.now() - start) / 1000);
  }
  seconds.sort((a, b) => a - b);
  return { what, rate: amount / seconds[seconds.length >> 1] };
}
