/** Checks that the limits in SECURITY.md are those of the code. */
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { HTTP_OPTIONS } from "../../../src/cli/commands/http_options.ts";
import { SOCKET_LIMITS } from "../../../src/leaves/http/listen.ts";
import { ZSTD_LIMITS } from "../../../src/leaves/http/zstd.ts";
import { METADATA_LIMITS } from "../../../src/serve/tinker/checkpoint/record.ts";
import { MOST_DATA } from "../../../src/serve/tinker/protocol/forward_backward.ts";
import { MOST_VALUES } from "../../../src/serve/tinker/protocol/loss_rows.ts";
import { MOST_SAMPLED_TOP, STOP_LIMITS } from "../../../src/serve/tinker/protocol/prompt_request.ts";
import { MOST_PROMPT_CELLS } from "../../../src/serve/tinker/protocol/prompt_targets.ts";
import { BODY_SETTINGS, JSON_LIMITS } from "../../../src/serve/tinker/routes/bodies.ts";
import { ALWAYS_QUEUED } from "../../../src/serve/tinker/sample/samplers.ts";
import { DEFAULT_LIMITS } from "../../../src/serve/tinker/service.ts";

const PAGE = readFileSync(new URL("../../../SECURITY.md", import.meta.url), "utf8");

test.each<[string, number, string]>([
  ["request line and headers", SOCKET_LIMITS.headerBytes, "KiB"],
  ["time for headers", SOCKET_LIMITS.headersMs, "s"],
  ["time for a whole request", SOCKET_LIMITS.requestMs, "s"],
  ["time without a byte of a body", BODY_SETTINGS.bodyIdleMs, "s"],
  ["connections", SOCKET_LIMITS.connections, ""],
  ["a batch to train on, plain and decompressed", BODY_SETTINGS.bodyBytes, "MiB"],
  ["all bodies that arrive or wait", BODY_SETTINGS.bodiesBytes, "MiB"],
  ["JSON, without the tokens of a prompt and its targets", JSON_LIMITS.bytes, "MiB"],
  ["JSON: levels", JSON_LIMITS.depth, ""],
  ["JSON: values, without the tokens of a prompt and its targets", JSON_LIMITS.values, ""],
  ["data in a batch", MOST_DATA, ""],
  ["values of a batch's targets and inputs, where its body has fewer bytes (sparse tensors)", MOST_VALUES, ""],
  ["zstd: window", ZSTD_LIMITS.windowBytes, "MiB"],
  ["zstd: frames", ZSTD_LIMITS.frames, ""],
  ["sessions", DEFAULT_LIMITS.sessions, ""],
  ["training clients in memory", DEFAULT_LIMITS.models, ""],
  ["sampling clients of a session", DEFAULT_LIMITS.samplers, ""],
  ["silence after which a session gives way when all are taken", DEFAULT_LIMITS.idleMs, "s"],
  ["sampling requests that wait", DEFAULT_LIMITS.queuedSamples, ""],
  ["sampling requests that wait, of one session", DEFAULT_LIMITS.queuedBySession, ""],
  ["sampling requests that a session may have waiting where all are taken", ALWAYS_QUEUED, ""],
  ["stop texts or tokens of a request", STOP_LIMITS.count, ""],
  ["cells of `target_prompt_logprobs`", MOST_PROMPT_CELLS, ""],
  ["top tokens of all samples of a request", MOST_SAMPLED_TOP, ""],
  ["stop texts: characters", STOP_LIMITS.characters, ""],
  ["`user_metadata`: characters as JSON", METADATA_LIMITS.characters, ""],
  ["`user_metadata`: levels", METADATA_LIMITS.levels, ""],
])("SECURITY.md: %s", (name, value, unit) => {
  const size = { KiB: 2 ** 10, MiB: 2 ** 20, s: 1000, "": 1 }[unit] as number;
  expect(PAGE).toContain(`| ${name} | ${`${value / size} ${unit}`.trim()} |`);
});

test.each(["--body-mib", "--bodies-mib"])("SECURITY.md and --help agree on %s", (flag) => {
  const option = HTTP_OPTIONS.find((it) => it.flag === flag);
  expect(PAGE).toContain(`| ${option?.default} MiB | \`${flag}\` |`);
});
