import { defineConfig } from "vitest/config";

/** The whole soak; the suite runs its first mistakes. */
export default defineConfig({
  test: {
    include: ["test/soak/**/*_test.ts"],
    env: { SOAK_MISTAKES: process.env.SOAK_MISTAKES ?? "220" },
    maxConcurrency: 3,
  },
});
