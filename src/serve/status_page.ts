/** The page that a person reads: what the server is doing. */
import type { TinkerService } from "./service.ts";

export function statusPage(_service: TinkerService): string {
  return "<!doctype html>";
}
