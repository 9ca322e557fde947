/** The route by which a server that samples with copied weights hands on what it recorded. Not of the protocol. */
import { ConfigError } from "../../../leaves/errors.ts";
import { parsePath } from "../checkpoint_path.ts";
import { Refusal } from "../protocol/outcome.ts";
import type { TinkerService } from "../service.ts";
import { HANDED_ROUTE, NOBODY_TRAINS } from "../stability/hand_over.ts";
import { checkHanded, decodeHanded, type HandedSequences } from "../stability/handed_message.ts";
import type { Routes } from "./bodies.ts";

export function addRecordedSequencesRoute(app: Routes, service: TinkerService): void {
  app.post(HANDED_ROUTE, async (c) => {
    service.stability.refuseRecording();
    const { bytes, lease } = c.get("body");
    // The arrays are copied out of the body.
    lease.takeMore(bytes.length);
    await take(service, await decodeHanded(bytes));
    return c.body(null, 204);
  });
}

/** @throws Refusal unless an open session trains the weights, and another server's session sampled the sequences */
async function take(service: TinkerService, { path, sequences }: HandedSequences): Promise<void> {
  const run = runOf(service, path);
  const from = await checkHanded(sequences, run.model.engine);
  if (service.sessions.get(from))
    throw new Refusal(
      400,
      `Cannot take recorded sequences: their ids are those of a session of this server (${from}).`,
    );
  // The session may have ended meanwhile.
  const { session } = runOf(service, path).record;
  try {
    service.stability.recorded.keep(sequences, { session, from });
  } catch (error) {
    if (error instanceof ConfigError) throw new Refusal(400, `Cannot take recorded sequences: ${error.message}.`);
    throw error;
  }
}

function runOf({ runs, sessions, checkpoints }: TinkerService, path: string) {
  const { run: id } = parsePath(path);
  const run = runs.get(id);
  if (run && sessions.get(run.record.session)) return run;
  const from = checkpoints.hasRun(id) ? checkpoints.findRun(id).copiedFrom : undefined;
  if (from !== undefined)
    throw new Refusal(
      400,
      `Cannot take recorded sequences of ${path}: this server copied the weights too, from ${from}. Give that server as --peer.`,
    );
  throw new Refusal(NOBODY_TRAINS, `Cannot take recorded sequences of ${path}: no open session trains it.`);
}
