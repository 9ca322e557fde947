/** Node's modules by name: code that a page bundles as well imports none of them. Node, Deno and Bun have them. */
import { UnsupportedError } from "./errors.ts";

interface NodeModules {
  readonly "node:child_process": typeof import("node:child_process");
  readonly "node:fs": typeof import("node:fs");
  readonly "node:fs/promises": typeof import("node:fs/promises");
  readonly "node:os": typeof import("node:os");
  readonly "node:path": typeof import("node:path");
}

/** A module of Node. In a page each of its functions throws {@link UnsupportedError}. */
export function nodeModule<Name extends keyof NodeModules>(name: Name): NodeModules[Name] {
  const { process } = globalThis as { process?: Partial<NodeJS.Process> };
  const found = process?.getBuiltinModule?.(name);
  return (found ?? new Proxy({}, { get: (_, member) => refuse(name, String(member)) })) as NodeModules[Name];
}

function refuse(name: string, member: string) {
  return () => {
    throw new UnsupportedError(
      `Cannot call ${member} of ${name}: a page has no file system. Give readers and stores of your own, such as httpFolder(url).`,
      { part: "runtime", capability: name },
    );
  };
}
