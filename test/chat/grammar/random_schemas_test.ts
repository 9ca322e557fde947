import { expect, test } from "vitest";
import { expectValidTexts } from "../../fixtures/random_schemas.ts";

test("500 random schemas: every text that ends is valid", () => {
  const { ended, characters } = expectValidTexts(500);
  expect(ended).toBeGreaterThan(400);
  expect(characters).toBeGreaterThan(5000);
});
