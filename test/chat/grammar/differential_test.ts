/** The grammar of a schema against Ajv: random schemas of all supported keywords, combined freely, and random values. */
import { expect, test } from "vitest";
import { compareWithValidator } from "../../fixtures/schema_comparison.ts";

test("what the grammar of a random schema accepts is valid, and what is meant for the schema is accepted", () => {
  const { refused, drawn, valid, invalid } = compareWithValidator({ cases: 50, seed: 2026 });
  expect(refused).toBeLessThan(35);
  expect(drawn).toBeGreaterThan(10);
  expect(valid).toBeGreaterThan(30);
  expect(invalid).toBeGreaterThan(200);
});
