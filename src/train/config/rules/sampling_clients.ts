/** Rules of a Tinker service's sampling clients whose weights change under requests. */
import type { Rule } from "./rules.ts";

const KIND = "tinker_sampling_client_kind";
const ASYNC = "rllm.async_training.enable";

const inflight: Rule["check"] = (read) => {
  if (read(KIND) !== "inflight") return undefined;
  const cannot = (why: string) => ({
    severity: "error" as const,
    path: KIND,
    message: `Cannot sample with ${KIND}=inflight: ${why}.`,
  });
  if (read(ASYNC) !== true)
    return cannot(
      `without ${ASYNC} no request is on its way while weights change. Set ${ASYNC}=true, or ${KIND}=snapshot`,
    );
  const urls = read("tinker_base_url");
  if (typeof urls === "string" && urls.includes(","))
    return cannot(
      `further servers sample saved weights, which do not change. Name one server, or set ${KIND}=snapshot`,
    );
  return undefined;
};

export const SAMPLING_CLIENT_RULES: readonly Rule[] = [{ backends: ["tinker"], check: inflight }];
