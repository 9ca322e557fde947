/** Names in a template. */
import { Undefined, type Value } from "./value.ts";

/** Names of a block, and those around it. */
export class Scope {
  private readonly names = new Map<string, Value>();
  private readonly outer: Scope | undefined;
  private readonly globals: ReadonlyMap<string, Value> | undefined;

  constructor(outer: Scope | undefined, globals?: ReadonlyMap<string, Value>) {
    this.outer = outer;
    this.globals = globals;
  }

  /** Sets a name here, without a change to the scopes around. */
  set(name: string, value: Value): void {
    this.names.set(name, value);
  }

  get(name: string): Value {
    for (let scope: Scope | undefined = this; scope; scope = scope.outer) {
      // None is null, so that `??` would look further.
      for (const names of [scope.names, scope.globals]) {
        const value = names?.get(name);
        if (value !== undefined) return value;
      }
    }
    return new Undefined(name);
  }
}
