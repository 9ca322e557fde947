/** Routes of the protocol that this server does not have, each with the reason. */
import { Refusal } from "../protocol/outcome.ts";
import type { Routes } from "./bodies.ts";

const UNSUPPORTED: readonly (readonly ["GET" | "POST", string, string])[] = [
  [
    "POST",
    "copy_weights",
    "Cannot copy weights: this server has no accounts to copy between. Load the path itself, which every client may.",
  ],
  ["GET", "audit", "Cannot list the audit log: this server keeps none. Its stderr has what it logs."],
  [
    "GET",
    "sessions/:id/trace_export",
    "Cannot export the session's trace: this server keeps none. /metrics has its throughput and its answers by status.",
  ],
  [
    "GET",
    "billing/usage/events",
    "Cannot list billed usage: this server bills nothing. /metrics counts the tokens of training and sampling.",
  ],
  [
    "GET",
    "billing/usage/checkpoints/current",
    "Cannot list billed storage: this server bills nothing. The list of checkpoints has their sizes.",
  ],
];

/** Refuses with 404, which clients do not repeat. */
export function addUnsupportedRoutes(app: Routes): void {
  for (const [method, path, reason] of UNSUPPORTED)
    app.on(method, `/api/v1/${path}`, () => {
      throw new Refusal(404, reason);
    });
}
