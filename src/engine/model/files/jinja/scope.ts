/** Names in a template. */
import { type JinjaValue, Undefined } from "./value.ts";

/** Names of a block, and those around it. */
export class Scope {
  private readonly names = new Map<string, JinjaValue>();
  private readonly outer: Scope | undefined;
  private readonly globals: ReadonlyMap<string, JinjaValue> | undefined;

  constructor(outer: Scope | undefined, globals?: ReadonlyMap<string, JinjaValue>) {
    this.outer = outer;
    this.globals = globals;
  }

  /** Sets a name here, without a change to the scopes around. */
  set(name: string, value: JinjaValue): void {
    this.names.set(name, value);
  }

  get(name: string): JinjaValue {
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
