/** What `npm run setup` decides on made-up machines; a run of the real thing is part of .ci/run. */
import { describe, expect, test } from "vitest";

interface Plan {
  install: boolean;
  reason?: string;
  target?: string[];
  source?: { file: string; text: string };
  advice: string[];
}
interface Machine {
  platform: string;
  osRelease: Record<string, string>;
  isRoot: boolean;
  hasApt: boolean;
  sources: Record<string, string>;
}
const { planInstall }: { planInstall(machine: Machine): Plan } = await import(
  new URL("../scripts/setup.mjs", import.meta.url).href
);

const LIST = "/etc/apt/sources.list";
const DEB822 = "/etc/apt/sources.list.d/debian.sources";
const BOOKWORM = { ID: "debian", VERSION_CODENAME: "bookworm" };
const machine = (change: Partial<Machine>): Machine => ({
  platform: "linux",
  osRelease: BOOKWORM,
  isRoot: true,
  hasApt: true,
  sources: {},
  ...change,
});

describe("planInstall() derives Debian 12's backports from the machine's own source", () => {
  test("deb822, comment lines inside and before stanzas dropped, key and mirror kept", () => {
    const text = [
      "# See the manual",
      "Types: deb",
      "# http://snapshot.example/archive/20250520",
      "URIs: http://mirror.example/debian",
      "Suites: bookworm bookworm-updates",
      "Components: main contrib",
      "Signed-By: /usr/share/keyrings/key.gpg",
      "",
      "Types: deb",
      "URIs: http://mirror.example/debian-security",
      "Suites: bookworm-security",
      "Components: main",
      "",
    ].join("\n");
    const plan = planInstall(machine({ sources: { [DEB822]: text } }));
    expect(plan).toMatchObject({ install: true, target: ["-t", "bookworm-backports"] });
    expect(plan.source).toEqual({
      file: "grpu-backports.sources",
      text: [
        "Types: deb",
        "URIs: http://mirror.example/debian",
        "Suites: bookworm-backports",
        "Components: main",
        "Signed-By: /usr/share/keyrings/key.gpg",
        "",
      ].join("\n"),
    });
  });

  test("deb822 with deb-src, Windows line ends, a key in the stanza, other archives first", () => {
    const text = [
      "Types: deb",
      "URIs: http://other.example/linux",
      "Suites: bookworm",
      "Components: stable",
      "",
      "Enabled: no",
      "Types: deb",
      "URIs: http://off.example/debian",
      "Suites: bookworm",
      "Components: main",
      "",
      "Types: deb deb-src",
      "URIs: http://mirror.example/debian",
      "Suites: bookworm",
      " bookworm-updates",
      "Components: main",
      "Signed-By:",
      " -----BEGIN PGP PUBLIC KEY BLOCK-----",
      " .",
      " abc",
    ].join("\r\n");
    const { source } = planInstall(machine({ sources: { [LIST]: "", [DEB822]: text } }));
    expect(source?.text).toBe(
      [
        "Types: deb",
        "URIs: http://mirror.example/debian",
        "Suites: bookworm-backports",
        "Components: main",
        "Signed-By:",
        " -----BEGIN PGP PUBLIC KEY BLOCK-----",
        " .",
        " abc",
        "",
      ].join("\n"),
    );
  });

  test("classic lines, options kept", () => {
    const text = [
      "# deb http://old.example/debian bookworm main",
      "deb-src http://mirror.example/debian bookworm main",
      "deb http://mirror.example/debian-security bookworm-security main",
      "deb [signed-by=/usr/share/keyrings/k.gpg arch=amd64] http://mirror.example/debian bookworm main contrib # x",
    ].join("\n");
    expect(planInstall(machine({ sources: { [LIST]: text } })).source).toEqual({
      file: "grpu-backports.list",
      text: "deb [signed-by=/usr/share/keyrings/k.gpg arch=amd64] http://mirror.example/debian bookworm-backports main\n",
    });
  });

  test("not at all where the machine has them", () => {
    for (const [path, text] of [
      [DEB822, "Types: deb\nURIs: http://m.example/debian\nSuites: bookworm-backports\nComponents: main\n"],
      [LIST, "deb http://m.example/debian bookworm-backports main\n"],
    ]) {
      const plan = planInstall(machine({ sources: { [path!]: text! } }));
      expect(plan).toMatchObject({ install: true, target: ["-t", "bookworm-backports"], source: undefined });
    }
    const off = "Enabled: no\nTypes: deb\nURIs: http://m.example/debian\nSuites: bookworm-backports\nComponents: main";
    expect(planInstall(machine({ sources: { [DEB822]: off } }))).toMatchObject({ install: false });
  });
});

test("planInstall() takes newer releases' own Mesa", () => {
  const releases: Record<string, string>[] = [
    { ID: "debian", VERSION_CODENAME: "trixie" },
    { ID: "ubuntu", ID_LIKE: "debian", VERSION_CODENAME: "noble" },
    { ID: "linuxmint", ID_LIKE: "ubuntu debian", VERSION_CODENAME: "wilma" },
  ];
  for (const osRelease of releases) {
    expect(planInstall(machine({ osRelease }))).toMatchObject({
      install: true,
      target: [],
      source: undefined,
    });
  }
});

describe("planInstall() installs nothing and says what to do", () => {
  const cases: [name: string, change: Partial<Machine>, reason: RegExp, advice: RegExp][] = [
    ["without root", { isRoot: false }, /needs root/, /^Run once: sudo .*setup\.mjs --adapter-only$/],
    ["on another distribution", { osRelease: { ID: "fedora" }, hasApt: false }, /no installer/, /Vulkan driver/],
    ["without /etc/os-release", { osRelease: {} }, /no installer for this system \(linux\)/, /Vulkan driver/],
    ["on a Mac", { platform: "darwin" }, /own GPU driver/, /Update the graphics driver/],
    ["without a source to derive from", {}, /no apt source of bookworm/, /As root: apt-get update/],
  ];
  test.each(cases)("%s", (_name, change, reason, advice) => {
    const plan = planInstall(machine(change));
    expect(plan.install).toBe(false);
    expect(plan.reason).toMatch(reason);
    expect(plan.advice[0]).toMatch(advice);
  });
});
