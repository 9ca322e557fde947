import { expect, test } from "vitest";
import { httpSettings } from "../../../src/cli/commands/http_options.ts";

const GIVEN = { host: "127.0.0.1", bodyMib: "32", bodiesMib: "512" };

test("the flags become settings", () => {
  const given = {
    ...GIVEN,
    allowHost: ["Box.local"],
    cors: ["https://app.example", "http://localhost:3000"],
  };
  expect(httpSettings(given)).toEqual({
    host: "127.0.0.1",
    allowedHosts: ["box.local"],
    allowedOrigins: ["https://app.example", "http://localhost:3000"],
    bodyBytes: 32 * 2 ** 20,
    bodiesBytes: 512 * 2 ** 20,
  });
  expect(httpSettings(GIVEN)).toMatchObject({ allowedHosts: [], allowedOrigins: [] });
});

test.each([
  [{ cors: ["*"] }, /Cannot allow the origin "\*"/],
  [{ cors: ["https://app.example/"] }, /without a path/],
  [{ allowHost: ["box:80"] }, /without a port/],
  [{ bodyMib: "0" }, /--body-mib/],
  [{ bodyMib: "x" }, /--body-mib/],
  [{ bodiesMib: "40" }, /at least twice --body-mib/],
])("%j is refused", (given, why) => {
  expect(() => httpSettings({ ...GIVEN, ...given })).toThrow(why);
});
