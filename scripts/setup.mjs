/**
 * Makes a checkout ready to run: dependencies, dist/, and a WebGPU adapter. Quick when all of that is there.
 * `npm run setup`, or `node scripts/setup.mjs [--adapter-only]`. Plain JavaScript for Node 20, nothing to install first.
 *
 * Where no adapter answers, root on Debian or Ubuntu gets Mesa's software one; anyone else is told what to install,
 * and everything goes on with the slower `cpu` device. Only missing dependencies end with an error.
 */
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const stampPath = join(root, "node_modules", ".cache", "grpu", "adapter.json");
const MINUTE_MS = 60_000;

const say = (text) => process.stderr.write(`${text}\n`);

function main(args) {
  if (args.includes("--probe")) return probe();
  if (!checkNode()) return 1;
  if (args.includes("--adapter-only")) return setUpAdapter();
  if (!installDependencies()) return 1;
  return buildDist() || setUpAdapter();
}

function checkNode() {
  const [major, minor] = process.versions.node.split(".").map(Number);
  if (major > 20 || (major === 20 && minor >= 19)) return true;
  say(`Cannot set up grpu as it needs Node 20.19 or newer: ${process.versions.node}`);
  return false;
}

// ---- dependencies and dist -------------------------------------------------------------------------------------

/** npm writes node_modules/.package-lock.json when an install is done. */
function installDependencies() {
  const done = join(root, "node_modules", ".package-lock.json");
  const lock = join(root, "package-lock.json");
  if (existsSync(done) && statSync(done).mtimeMs >= statSync(lock).mtimeMs) return true;
  if (existsSync(done) && sameVersions(lock, done)) return true;
  say("Installing dependencies (npm ci) ...");
  const npm = process.platform === "win32" ? "npm.cmd" : "npm";
  const { status } = spawnSync(npm, ["ci", "--no-audit", "--no-fund", "--ignore-scripts"], {
    cwd: root,
    stdio: ["ignore", 2, 2],
    shell: process.platform === "win32",
    timeout: 15 * MINUTE_MS,
  });
  if (status === 0) return true;
  say(
    "Cannot set up grpu as `npm ci` failed: see above. Is the npm registry reachable? Then run `npm run setup` again.",
  );
  return false;
}

/** True when what is installed is what the lock file asks for (a fresh checkout's files are newer than their contents). */
function sameVersions(lock, done) {
  const versions = (path) => {
    const { packages } = JSON.parse(readFileSync(path, "utf8"));
    return Object.entries(packages).map(([name, it]) => [name, it]);
  };
  const installed = new Map(versions(done));
  return versions(lock).every(
    ([name, it]) => name === "" || (installed.has(name) ? installed.get(name).version === it.version : it.optional),
  );
}

function buildDist() {
  return spawnSync(process.execPath, [join(root, "scripts", "build.mjs")], { stdio: ["ignore", 2, 2] }).status ?? 1;
}

// ---- the adapter -----------------------------------------------------------------------------------------------

/** Always 0: without an adapter everything still runs, on `cpu`. */
function setUpAdapter() {
  const drivers = driverStamp();
  const stamp = readStamp();
  if (stamp?.drivers === drivers) {
    say(`WebGPU: ${stamp.adapter}`);
    return 0;
  }
  let adapter = findAdapter();
  if (!adapter) {
    const plan = planInstall(readMachine());
    if (plan.install) {
      const failure = installMesa(plan);
      adapter = findAdapter();
      if (!adapter) say(explain(failure ?? "the driver is installed, but no adapter answers", plan));
    } else say(explain(plan.reason, plan));
  }
  if (adapter) {
    mkdirSync(join(stampPath, ".."), { recursive: true });
    writeFileSync(stampPath, JSON.stringify({ adapter, drivers: driverStamp() }));
    say(`WebGPU: ${adapter}`);
  }
  return 0;
}

function explain(reason, { advice }) {
  return [
    `No WebGPU adapter: ${reason}.`,
    ...advice.map((line) => `  ${line}`),
    "Everything works without one, more slowly: grpu goes on with its `cpu` device.",
  ].join("\n");
}

function readStamp() {
  try {
    return JSON.parse(readFileSync(stampPath, "utf8"));
  } catch {
    return undefined;
  }
}

/** Changes when a Vulkan driver or the webgpu package comes, goes or is replaced. */
function driverStamp() {
  const folders = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"];
  const seen = folders.filter(existsSync).map((dir) => {
    const files = readdirSync(dir).sort();
    return [dir, ...files.map((name) => `${name}@${statSync(join(dir, name)).mtimeMs}`)].join(" ");
  });
  const pkg = join(root, "node_modules", "webgpu", "package.json");
  const webgpu = existsSync(pkg) ? JSON.parse(readFileSync(pkg, "utf8")).version : "none";
  const chosen = ["VK_ICD_FILENAMES", "VK_DRIVER_FILES"].map((name) => process.env[name] ?? "");
  return [webgpu, process.arch, ...chosen, ...seen].join("\n");
}

/** One line about the adapter, after it has really computed something; `undefined` when there is none. */
function findAdapter() {
  // In a process of its own: a driver may crash or hang.
  const { status, stdout } = spawnSync(process.execPath, [fileURLToPath(import.meta.url), "--probe"], {
    encoding: "utf8",
    stdio: ["ignore", "pipe", "ignore"],
    timeout: MINUTE_MS,
  });
  return status === 0 ? stdout.trim() : undefined;
}

/** Doubles 64 numbers on the adapter; prints its name and returns 0 when the result is right. */
async function probe() {
  let gpu;
  try {
    const { create } = await import("webgpu");
    gpu = create([]);
  } catch {
    return 1;
  }
  const adapter = await gpu.requestAdapter();
  if (!adapter) return 1;
  const device = await adapter.requestDevice();
  const code = `@group(0) @binding(0) var<storage, read_write> x: array<f32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3u) { x[id.x] = 2 * f32(id.x); }`;
  const pipeline = device.createComputePipeline({
    layout: "auto",
    compute: { module: device.createShaderModule({ code }) },
  });
  const [STORAGE, COPY_SRC, COPY_DST, MAP_READ] = [0x80, 0x4, 0x8, 0x1];
  const x = device.createBuffer({ size: 256, usage: STORAGE | COPY_SRC });
  const out = device.createBuffer({ size: 256, usage: COPY_DST | MAP_READ });
  const encoder = device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  pass.setPipeline(pipeline);
  const entries = [{ binding: 0, resource: { buffer: x } }];
  pass.setBindGroup(0, device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }));
  pass.dispatchWorkgroups(1);
  pass.end();
  encoder.copyBufferToBuffer(x, 0, out, 0, 256);
  device.queue.submit([encoder.finish()]);
  await out.mapAsync(1);
  const right = new Float32Array(out.getMappedRange()).every((value, i) => value === 2 * i);
  const { vendor, architecture, device: name, description } = adapter.info;
  process.stdout.write([name || vendor, architecture, description].filter(Boolean).join(", "));
  return right ? 0 : 1;
}

// ---- Mesa's software adapter on Debian and Ubuntu ----------------------------------------------------------------

/** What {@link planInstall} looks at. */
function readMachine() {
  const text = existsSync("/etc/os-release") ? readFileSync("/etc/os-release", "utf8") : "";
  return {
    platform: process.platform,
    osRelease: Object.fromEntries(
      [...text.matchAll(/^(\w+)=(.*)$/gm)].map(([, key, value]) => [key, value.replace(/^["']|["']$/g, "")]),
    ),
    isRoot: process.getuid?.() === 0,
    hasApt: existsSync("/usr/bin/apt-get"),
    sources: readSources("/etc/apt"),
  };
}

/** Text of apt's source files by path. */
function readSources(dir) {
  const parts = join(dir, "sources.list.d");
  const names = existsSync(parts) ? readdirSync(parts).sort() : [];
  const paths = [
    join(dir, "sources.list"),
    ...names.filter((name) => /\.(list|sources)$/.test(name)).map((name) => join(parts, name)),
  ];
  return Object.fromEntries(paths.filter(existsSync).map((path) => [path, readFileSync(path, "utf8")]));
}

/** Debian releases whose own Mesa is too old for WebGPU: it comes from their backports. */
const NEEDS_BACKPORTS = ["bookworm"];

/** What to install, or why nothing can be. A plain function of the machine, for tests. */
export function planInstall({ platform, osRelease, isRoot, hasApt, sources }) {
  if (platform === "darwin" || platform === "win32") {
    return {
      install: false,
      reason: "the system's own GPU driver gave none",
      advice: ["Update the graphics driver."],
    };
  }
  const family = `${osRelease.ID ?? ""} ${osRelease.ID_LIKE ?? ""}`.split(" ");
  if (platform !== "linux" || !hasApt || !family.some((id) => id === "debian" || id === "ubuntu")) {
    const advice = [
      "Install your GPU's Vulkan driver, or Mesa 23.2 or newer with its software driver (lavapipe) and the Vulkan loader:",
      "Fedora: dnf install mesa-vulkan-drivers vulkan-loader;  Arch: pacman -S vulkan-swrast vulkan-icd-loader",
    ];
    return {
      install: false,
      reason: `no installer for this system (${osRelease.PRETTY_NAME ?? platform})`,
      advice,
    };
  }
  const codename = osRelease.VERSION_CODENAME ?? "";
  const backports = NEEDS_BACKPORTS.includes(codename);
  const suite = `${codename}-backports`;
  const target = backports ? ["-t", suite] : [];
  const packages = ["mesa-vulkan-drivers", "libvulkan1"];
  const advice = [`As root: apt-get update && apt-get install ${[...target, ...packages].join(" ")}`];
  if (!isRoot) {
    advice[0] = `Run once: sudo ${process.execPath} ${fileURLToPath(import.meta.url)} --adapter-only`;
    return { install: false, reason: "installing the software one needs root", advice };
  }
  const source = backports && !hasSuite(sources, suite) ? deriveSource(sources, { codename, suite }) : undefined;
  if (backports && source === undefined && !hasSuite(sources, suite)) {
    return { install: false, reason: `no apt source of ${codename} to derive ${suite} from`, advice };
  }
  return { install: true, packages, target, source, advice };
}

/** True when some apt source has the suite already. */
function hasSuite(sources, suite) {
  return Object.entries(sources).some(([path, text]) =>
    path.endsWith(".sources")
      ? stanzas(text).some((it) => isOn(it) && words(it.suites).includes(suite))
      : classicLines(text).some((line) => line.suite === suite),
  );
}

/**
 * A source for `suite` made from the machine's own source of `codename` by text replacement, so that mirrors, keys
 * and options stay: {file, text}; `undefined` when no source has the release's `main`.
 */
export function deriveSource(sources, { codename, suite }) {
  for (const [path, text] of Object.entries(sources)) {
    if (path.endsWith(".sources")) {
      const stanza = stanzas(text).find(
        (it) => isOn(it) && words(it.suites).includes(codename) && words(it.components).includes("main"),
      );
      if (!stanza) continue;
      const fields = { Types: "deb", Suites: suite, Components: "main" };
      let made = stanza.text;
      for (const [key, value] of Object.entries(fields)) {
        made = made.replace(new RegExp(`^${key}:.*(\\n[ \\t].*)*`, "im"), `${key}: ${value}`);
      }
      return { file: "grpu-backports.sources", text: `${made}\n` };
    }
    const line = classicLines(text).find((it) => it.suite === codename && it.components.includes("main"));
    if (line) return { file: "grpu-backports.list", text: `${line.head} ${suite} main\n` };
  }
  return undefined;
}

/** Stanzas of a deb822 file without their comment lines, with the fields that matter here. */
function stanzas(text) {
  const clean = text.replace(/\r/g, "").replace(/^#.*\n?/gm, "");
  return clean
    .split(/\n[ \t]*\n+/)
    .map((part) => part.trim())
    .filter(Boolean)
    .map((part) => {
      const field = (key) => new RegExp(`^${key}:(.*(?:\\n[ \\t].*)*)`, "im").exec(part)?.[1].trim() ?? "";
      const [types, suites, components, enabled] = ["Types", "Suites", "Components", "Enabled"].map(field);
      return { text: part, types, suites, components, enabled };
    });
}

const words = (text) => text.split(/\s+/);
const isOn = ({ types, enabled }) => words(types).includes("deb") && !/^(no|false|off|0)$/i.test(enabled);

/** `deb [options] URI suite component ...` lines of a classic file. */
function classicLines(text) {
  return text.split("\n").flatMap((line) => {
    const match = /^\s*(deb\s+(?:\[[^\]]*\]\s+)?\S+)\s+(\S+)\s+([^#]+)/.exec(line);
    return match ? [{ head: match[1], suite: match[2], components: words(match[3].trim()) }] : [];
  });
}

/** Runs apt. Returns why it failed, `undefined` when it did not. */
function installMesa({ packages, target, source }) {
  say("No WebGPU adapter answers: installing Mesa's software one (apt, about a minute) ...");
  if (source) {
    const path = join("/etc/apt/sources.list.d", source.file);
    writeFileSync(path, source.text);
    say(`Added the apt source ${path}.`);
  }
  // One package source that cannot be reached is no reason to stop: what counts is the install.
  const update = apt(["update"]);
  const { status, signal, stdout, stderr } = apt(["install", "-y", "--no-install-recommends", ...target, ...packages]);
  if (status === 0) return undefined;
  say(`${update.stderr}${stdout}${stderr}`.trim().split("\n").slice(-15).join("\n"));
  return signal ? "apt-get took too long" : "apt-get could not install the software one: see above. Is the network up?";
}

function apt(args) {
  const options = ["Dpkg::Use-Pty=0", "DPkg::Lock::Timeout=120", "Acquire::Retries=2", "Acquire::http::Timeout=30"];
  return spawnSync("apt-get", ["-qq", ...options.flatMap((option) => ["-o", option]), ...args], {
    encoding: "utf8",
    env: { ...process.env, DEBIAN_FRONTEND: "noninteractive", LC_ALL: "C" },
    stdio: ["ignore", "pipe", "pipe"],
    timeout: 8 * MINUTE_MS,
  });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) process.exitCode = await main(process.argv.slice(2));
