import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/soak/**/*_test.ts"],
    maxConcurrency: 3,
  },
});
