/** The loss `stable_reinforce` in the service's terms. */
import { STABLE_REINFORCE } from "../../../engine/algorithm/loss/service_losses.ts";
import type { TrainBatch } from "../../../engine/contract/backend.ts";
import { type StableRequest, type StableRows, stableRows } from "../stable/stable_rows.ts";
import { atTemperature, type ServiceLoss } from "./service_loss.ts";

/** The rows that are sent, with their loss. @throws as {@link stableRows} */
export function stableLoss(
  batch: TrainBatch,
  of: Omit<StableRequest, "part">,
): Pick<StableRows, "rows" | "places"> & { readonly loss: ServiceLoss } {
  const { rows, places, inputs, klCoeff, spans } = stableRows(batch, { ...of, part: "tinker" });
  const config = { ...(klCoeff !== 0 && { kl_coeff: klCoeff }), ...atTemperature(of.spec.temperature) };
  return { rows, places, loss: { lossFn: STABLE_REINFORCE.name, config, inputs, spans } };
}
