/** The container of examples/reward_service, without Docker: every path that its files name is there, and they agree with each other. */
import { existsSync, readFileSync } from "node:fs";
import { join, posix } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { parse } from "yaml";
import pkg from "../../package.json" with { type: "json" };

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const FOLDER = "examples/reward_service";
const text = (name: string) => readFileSync(join(ROOT, FOLDER, name), "utf8");

/** Instructions in order; comments and blank lines are none. */
const DOCKERFILE = text("Dockerfile")
  .split("\n")
  .filter((line) => line.trim() !== "" && !line.startsWith("#"))
  .map((line) => /^([A-Z]+) (.+)$/.exec(line)!.slice(1, 3) as [name: string, rest: string]);
const all = (name: string) => DOCKERFILE.filter(([each]) => each === name).map(([, rest]) => rest);
const last = (name: string) => all(name).at(-1)!;
/** Folders of the checkout by where they lie in the image. */
const COPIED = new Map(
  all("COPY")
    .filter((rest) => !rest.startsWith("--from") && !rest.startsWith("."))
    .map((rest) => rest.split(" ").reverse() as [to: string, from: string]),
);

/** The place in the checkout of a path in the image. */
function sourceOf(path: string): string {
  const [to, from] = [...COPIED].find(([folder]) => path.startsWith(`${folder}/`)) ?? ["", ""];
  return from === "" ? `nothing copies ${path}` : join(ROOT, from, path.slice(to.length));
}

test("its instructions are Docker's, in two stages of a Node that grpu runs on", () => {
  const known = ["FROM", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "ENTRYPOINT", "CMD"];
  expect(DOCKERFILE.map(([name]) => name).filter((name) => !known.includes(name))).toEqual([]);
  const images = all("FROM").map((rest) => /^node:(\d+)-slim( AS build)?$/.exec(rest));
  expect(images.map((found) => found?.[2])).toEqual([" AS build", undefined]);
  const least = Number(/^>=(\d+)/.exec(pkg.engines.node)![1]);
  for (const found of images) expect(Number(found![1])).toBeGreaterThanOrEqual(least);
});

test("what it copies is there and not left out", () => {
  expect([...COPIED.values()]).toEqual(["examples/arithmetic", FOLDER]);
  const ignored = text("Dockerfile.dockerignore").trim().split("\n");
  for (const folder of COPIED.values()) {
    expect(existsSync(join(ROOT, folder)), folder).toBe(true);
    expect(ignored.some((each) => folder.split("/").includes(each.replace("**/", "")))).toBe(false);
  }
  // The build makes them, or the image must not have them.
  expect(ignored).toEqual(expect.arrayContaining(["node_modules", "dist", ".git"]));
  // `npm pack` names its file by the package.
  expect(last("COPY")).toContain("examples/");
  expect(all("COPY").find((rest) => rest.startsWith("--from=build"))).toContain(`/grpu/${pkg.name}-*.tgz`);
});

test("its command starts the service on a run and a module that lie in the image", () => {
  const [program, ...words] = JSON.parse(last("ENTRYPOINT")) as string[];
  expect(Object.keys(pkg.bin)).toContain(program);
  expect(words.slice(0, 2)).toEqual(["serve", "rewards"]);
  const at = (name: string) => posix.join(last("WORKDIR"), name);
  const [run, , module] = JSON.parse(last("CMD")) as [string, string, string];
  for (const name of [run, module]) expect(existsSync(sourceOf(at(name))), name).toBe(true);
  const { defaults } = parse(readFileSync(sourceOf(at(run)), "utf8")) as { defaults: string[] };
  const base = defaults.find((each) => each.startsWith("."))!;
  expect(existsSync(sourceOf(at(`${base}.yaml`))), base).toBe(true);
});

test("its port and token are those of compose.yaml", () => {
  const { services } = parse(text("compose.yaml")) as { services: Record<string, Service> };
  const { build, ports, environment, healthcheck } = services.rewards!;
  const context = join(ROOT, FOLDER, build.context);
  expect(join(context, build.dockerfile)).toBe(join(ROOT, FOLDER, "Dockerfile"));
  const words = JSON.parse(last("ENTRYPOINT")) as string[];
  const port = words[words.indexOf("--port") + 1];
  expect([last("EXPOSE"), ...ports]).toEqual([port, `${port}:${port}`]);
  expect(Object.keys(environment)).toEqual(["GRPU_TOKEN"]);
  expect(healthcheck.test.at(-1)).toContain(`http://127.0.0.1:${port}/health`);
  expect(() => new Function(healthcheck.test.at(-1)!)).not.toThrow();
});

interface Service {
  readonly build: { readonly context: string; readonly dockerfile: string };
  readonly ports: readonly string[];
  readonly environment: Readonly<Record<string, string>>;
  readonly healthcheck: { readonly test: readonly string[] };
}
