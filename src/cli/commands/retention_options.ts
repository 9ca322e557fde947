/** Options that limit a trace store; read by `retentionOf` in run/trace_options.ts. */
import type { Option } from "../command.ts";

export const RETENTION_OPTIONS: readonly Option[] = [
  { flag: "--max-age", value: "TIME", describe: "keep what the store got later: 30m, 12h, 7d ago" },
  { flag: "--max-traces", value: "N", describe: "keep at most N traces" },
  { flag: "--max-size", value: "SIZE", describe: "keep at most this size: 512MiB, 2GiB" },
];
