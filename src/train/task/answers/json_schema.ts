/** Responses that must be JSON of a schema. */

import type { ValidateFunction } from "ajv";
import { ConfigError } from "../../../leaves/errors.ts";
import { parseJson, stringifyJson } from "../../../leaves/json.ts";
import type { Task } from "../../data/types.ts";
import type { Args, Evaluation } from "../rollout.ts";

/** Compiled schemas: one is used for many responses. */
const compiled = new WeakMap<object, Promise<ValidateFunction>>();

/**
 * 1 when the whole response is JSON that is valid by the row's `schema`, else by `task.args.schema` (draft 2020-12). The metric
 * `is_json` tells text that is not JSON from JSON of another schema.
 * @throws {ConfigError} for a row without a schema, and for a schema that is none
 */
export async function jsonSchema(response: string, task: Task, args: Args): Promise<Evaluation> {
  const validate = await validatorOf(task.metadata.schema ?? args.schema, task);
  const value = parsed(response);
  const isJson = value !== undefined;
  return { reward: isJson && validate(value) ? 1 : 0, metrics: { is_json: Number(isJson) } };
}

function parsed(text: string): unknown {
  try {
    return parseJson(text);
  } catch {
    return undefined;
  }
}

function validatorOf(schema: unknown, task: Task): Promise<ValidateFunction> {
  if (typeof schema !== "object" || schema === null)
    throw new ConfigError(
      `Cannot judge the task ${task.id}: json_schema needs an object named schema in its row or in task.args (${stringifyJson(schema) ?? "none"}).`,
      { kind: "data" },
    );
  const validator = compiled.get(schema) ?? compile(schema, task);
  compiled.set(schema, validator);
  return validator;
}

async function compile(schema: object, task: Task): Promise<ValidateFunction> {
  const { Ajv2020 } = await import("ajv/dist/2020.js");
  try {
    return new Ajv2020({ strict: false, validateFormats: false }).compile(schema);
  } catch (cause) {
    throw new ConfigError(
      `Cannot judge the task ${task.id}: its JSON schema is not valid: ${(cause as Error).message}. Correct the schema.`,
      { kind: "data" },
      { cause },
    );
  }
}
