/** Checks the bodies and queries of routes. */
import type { z } from "zod";
import { Refusal } from "../../../leaves/http/refusal.ts";

/** @throws {Refusal} 400 naming the field */
export function checked<T extends z.ZodType>(schema: T, value: unknown, what: string): z.infer<T> {
  const { success, data, error } = schema.safeParse(value);
  if (success) return data;
  const [issue] = error.issues;
  throw new Refusal(400, `Cannot read ${issue!.path.join(".") || what}: ${issue!.message}.`);
}
