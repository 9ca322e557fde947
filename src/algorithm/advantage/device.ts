/** Records advantage estimation on a device: data in GPU buffers, advantages left there. */
import type { Buffer, Device } from "../../compute/device.ts";
import type { Advantages } from "../../contract/backend.ts";
import { forEachRow } from "../../data/offsets.ts";
import { UnsupportedError } from "../../errors.ts";
import type { AdvantageBatch } from "./definition.ts";
import { refuseSingleton } from "./estimators/grpo_passk.ts";
import { GROUP_MODE, ROWS_MODE } from "./kernels.ts";
import { type AdvantageInput, type Recorded, Recorder } from "./recorder.ts";

/** Advantages in GPU buffers, as a recorded estimate leaves them. */
export interface RecordedAdvantages {
  /** f32, as `recordPolicyLoss` takes them. Per token: 0 where mask = 0, except `remax`. */
  readonly advantages: Advantages<Buffer>;
  /** f32 [T], for per-token estimators. */
  readonly returns?: Buffer | undefined;
  release(): void;
}

const isByDeviation = (r: Recorder): boolean => r.settings.norm_adv_by_std_in_grpo === true;

function grpo(r: Recorder): Recorded {
  const aloneIsZero = r.name.startsWith("trl.");
  const options = { mode: GROUP_MODE.norm, byDeviation: isByDeviation(r), aloneIsZero };
  return { advantages: r.group(r.need("scores"), options) };
}

function grpoPassk(r: Recorder): Recorded {
  forEachRow(r.input.groups.offsets, (_, first, end) => refuseSingleton(end - first));
  return { advantages: r.group(r.need("scores"), { mode: GROUP_MODE.best, byDeviation: isByDeviation(r) }) };
}

function rloo(r: Recorder): Recorded {
  const aloneIsZero = r.name === "rloo_vectorized";
  return { advantages: r.group(r.need("scores"), { mode: GROUP_MODE.others, aloneIsZero }) };
}

function centred(r: Recorder, aloneIsZero = false): Buffer {
  return r.group(r.need("scores"), { mode: GROUP_MODE.norm, aloneIsZero });
}

function gpg(r: Recorder): Recorded {
  const advantages = centred(r);
  r.scaleByNonzero(advantages, r.need("scores"), r.settings.f_norm as number);
  return { advantages };
}

function gdpo(r: Recorder): Recorded {
  const components = Object.values(r.input.buffers.rewardComponents ?? { reward: r.need("scores") });
  const [scores] = components;
  if (!scores || components.length > 1)
    throw new UnsupportedError(
      `Cannot estimate gdpo on the device: it takes one reward there (${components.length}). Use advantages() on the host.`,
      { part: "advantages", capability: "gdpo with several rewards on the device" },
    );
  const advantages = r.group(scores, { mode: GROUP_MODE.norm, byDeviation: isByDeviation(r) });
  r.whitenByTokens(advantages, "row");
  return { advantages };
}

function prpo(r: Recorder): Recorded {
  const advantages = r.copyOfScores();
  r.divideByDeviation(advantages, { shift: true });
  return { advantages };
}

function reinforcePlusPlus(r: Recorder): Recorded {
  const mode = r.settings.reset_at_masked ? ROWS_MODE.reset : ROWS_MODE.discounted;
  return whitened(r, r.backwards(mode, { gamma: r.settings.gamma as number }));
}

function reinforcePlusPlusBaseline(r: Recorder): Recorded {
  const advantages = centred(r);
  r.whitenByTokens(advantages, "row");
  return { advantages };
}

function rllmReinforcePlusPlusBaseline(r: Recorder): Recorded {
  const advantages = centred(r, true);
  r.divideByDeviation(advantages, { shift: false });
  return { advantages };
}

function gae(r: Recorder): Recorded {
  const { gamma, lam } = r.settings as { gamma: number; lam: number };
  return whitened(r, r.backwards(ROWS_MODE.gae, { values: r.need("values"), gamma, lam }));
}

function whitened(r: Recorder, recorded: Required<Recorded>): Recorded {
  r.whitenByTokens(recorded.advantages, "token");
  return recorded;
}

/** How each built-in estimator is recorded. The formulas are those of `estimators/`. */
const RECORDERS: ReadonlyMap<string, (r: Recorder) => Recorded> = new Map([
  ["grpo", grpo],
  ["grpo_vectorized", grpo],
  ["rllm.grpo", grpo],
  ["trl.grpo", grpo],
  ["grpo_passk", grpoPassk],
  ["rloo", rloo],
  ["rloo_vectorized", rloo],
  ["reinforce", (r) => ({ advantages: r.copyOfScores() })],
  ["opo", (r) => ({ advantages: r.group(r.need("scores"), { mode: GROUP_MODE.length }) })],
  ["gpg", gpg],
  ["reinforce_plus_plus_baseline", reinforcePlusPlusBaseline],
  ["rllm.reinforce_plus_plus_baseline", rllmReinforcePlusPlusBaseline],
  ["prpo", prpo],
  ["gdpo", gdpo],
  ["gae", gae],
  ["reinforce_plus_plus", reinforcePlusPlus],
  ["remax", (r) => r.backwards(ROWS_MODE.toGo, { values: r.need("rewardBaselines") })],
  ["optimal_token_baseline", (r) => r.optimalBaseline({ compact: false })],
  ["tir_optimal_token_baseline", (r) => r.optimalBaseline({ compact: true })],
]);

/** True for an estimator that {@link recordAdvantages} takes; `gdpo` over several rewards runs on the host. */
export function hasAdvantageKernel(name: string, batch: Pick<AdvantageBatch, "rewardComponents"> = {}): boolean {
  return RECORDERS.has(name) && !(name === "gdpo" && batch.rewardComponents);
}

/**
 * Records the advantages of a packed batch. Nothing waits, nothing is read back.
 * @param name a built-in estimator; the user's own run on the host, see {@link advantages}
 * @throws {ConfigError} for an unknown name or setting, or a field the estimator needs and the batch lacks
 * @throws {UnsupportedError} for an estimator without a kernel
 */
export function recordAdvantages(device: Device, name: string, input: AdvantageInput): RecordedAdvantages {
  const recorder = new Recorder(device, name, input);
  const record = RECORDERS.get(name);
  if (!record)
    throw new UnsupportedError(
      `Cannot estimate ${name} on the device: it is a function of the host. Use advantages().`,
      { part: "advantages", capability: name },
    );
  const { advantages, returns } = record(recorder);
  recorder.finish();
  return {
    advantages: { level: returns ? "token" : "row", values: advantages },
    returns,
    release: () => device.release(advantages, ...(returns ? [returns] : [])),
  };
}
