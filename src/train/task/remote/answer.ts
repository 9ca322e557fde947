/** Reads what an agent in another process answers: bounded, checked, with errors that name the agent and the session. */

import { z } from "zod";
import { ConfigError } from "../../../leaves/errors.ts";
import { parseJson } from "../../../leaves/json.ts";
import { TERMINATION_REASONS } from "../../data/types.ts";
import type { AgentReport } from "./contract.ts";

/** Largest answer of an agent, bytes: a report holds figures, not conversations. */
export const MOST_ANSWER_BYTES = 2 ** 20;

/** Characters of a wrong answer in an error. */
const SHOWN = 200;

const figures = z.record(z.string(), z.number());

const REPORT = z.strictObject({
  reward: z.number().nullish(),
  is_correct: z.boolean().nullish(),
  termination_reason: z.enum(TERMINATION_REASONS).nullish(),
  metrics: figures.nullish(),
  signals: figures.nullish(),
  components: figures.nullish(),
  trajectory_rewards: figures.nullish(),
  metadata: z.record(z.string(), z.unknown()).nullish(),
});

/** Origin of an answer, for errors. */
export interface Asked {
  readonly url: string;
  readonly session_id: string;
}

/**
 * The report of an answer: a bare number is a reward, an empty body or null reports nothing.
 * @throws {ConfigError} for any other value that is not a report
 */
export function readReport(value: unknown, asked: Asked): AgentReport {
  if (value === undefined || value === null) return {};
  const { success, data, error } = REPORT.safeParse(typeof value === "number" ? { reward: value } : value);
  if (success) return withoutNulls(data);
  const [issue] = error.issues;
  const isUnknown = issue!.code === "unrecognized_keys";
  const field = isUnknown ? issue!.keys[0] : issue!.path.join(".");
  const rule = isUnknown ? "there is no such field; further values belong in metadata" : issue!.message;
  throw wrong(`${field || "it"}: ${rule}`, asked, `Answer {"reward": NUMBER}, with any of ${FIELDS}.`);
}

type Present<T> = { readonly [K in keyof T]?: Exclude<T[K], null | undefined> };

function withoutNulls<T extends object>(value: T): Present<T> {
  return Object.fromEntries(Object.entries(value).filter(([, each]) => each != null)) as Present<T>;
}

const FIELDS = Object.keys(REPORT.shape).slice(1).join(", ");

/** An answer's status, and its report where it is one. */
export interface RemoteAnswer {
  /** 202: the report comes by callback. */
  readonly isAccepted: boolean;
  /** Location of a 202, which `DELETE` cancels. */
  readonly location: string | undefined;
  readonly report: AgentReport;
}

/** @throws {ConfigError} for an error status, a redirect, a body that is too large or is no report */
export async function readAnswer(response: Response, asked: Asked): Promise<RemoteAnswer> {
  const { status } = response;
  const text = await readAtMost(response, asked);
  if (status >= 300 && status < 400)
    throw wrong(`it redirects to ${shown(response.headers.get("location"))}`, asked, "Set task.agent to that address.");
  if (status < 200 || status >= 300) throw wrong(`status ${status}: ${shown(text)}`, asked, "Correct the agent.");
  if (status === 202) return { isAccepted: true, location: locationOf(response, asked), report: {} };
  return { isAccepted: false, location: undefined, report: readReport(parse(text, asked), asked) };
}

/** The cancel address of a 202. Another origin is refused: the answer must not choose whom the run calls. */
function locationOf({ headers }: Response, asked: Asked): string | undefined {
  const location = headers.get("location");
  if (location === null) return undefined;
  const url = URL.canParse(location, asked.url) ? new URL(location, asked.url) : undefined;
  if (url?.origin === new URL(asked.url).origin) return url.href;
  throw wrong(
    `its Location is of another origin (${shown(location)})`,
    asked,
    "Give a path of the agent's own server.",
  );
}

function parse(text: string, asked: Asked): unknown {
  if (text.trim() === "") return undefined;
  try {
    return parseJson(text);
  } catch {
    throw wrong(`it is not JSON (${shown(text)})`, asked, 'Answer {"reward": NUMBER}.');
  }
}

async function readAtMost(response: Response, asked: Asked): Promise<string> {
  const reader = response.body?.getReader();
  if (!reader) return "";
  const decoder = new TextDecoder();
  let [text, size] = ["", 0];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return text + decoder.decode();
    size += value.byteLength;
    if (size > MOST_ANSWER_BYTES) {
      await reader.cancel().catch(() => {});
      throw wrong(`it is larger than ${MOST_ANSWER_BYTES} bytes`, asked, "Answer with figures alone.");
    }
    text += decoder.decode(value, { stream: true });
  }
}

function wrong(what: string, { url, session_id }: Asked, advice: string): ConfigError {
  return new ConfigError(
    `Cannot use the answer of the agent ${url} to the session ${session_id}: ${what}. ${advice.replace(/\.?$/, ".")}`,
    { kind: "code" },
  );
}

function shown(text: string | null): string {
  const flat = (text ?? "nothing").replace(/\s+/g, " ").trim();
  return flat.length > SHOWN ? `${flat.slice(0, SHOWN)}...` : flat;
}
