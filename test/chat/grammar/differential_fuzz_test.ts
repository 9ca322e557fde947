import { expect, test } from "vitest";
import { compareWithValidator } from "../../fixtures/schema_comparison.ts";

test("3000 random schemas: what their grammars accept is valid, and what is meant for them is accepted", () => {
  const { refused, drawn, valid, invalid } = compareWithValidator({ cases: 3000, seed: 99 });
  expect(refused).toBeLessThan(1800);
  expect(drawn).toBeGreaterThan(1000);
  expect(valid).toBeGreaterThan(2500);
  expect(invalid).toBeGreaterThan(10_000);
});
