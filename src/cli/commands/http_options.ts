/** Flags of the commands that listen: who may ask, and how much. */
import { ConfigError } from "../../leaves/errors.ts";
import { checkOriginName, isHostName } from "../../leaves/http/origin.ts";
import type { Input, Option } from "../command.ts";
import { integerOption } from "./model_options.ts";

export const ALLOW_HOST: Option = {
  flag: "--allow-host",
  value: "NAME",
  describe: "another name by which clients reach the server, for instance behind a proxy; may repeat",
  repeat: true,
};

export const HTTP_OPTIONS: readonly Option[] = [
  ALLOW_HOST,
  {
    flag: "--cors",
    value: "ORIGIN",
    describe:
      "origin of web pages that may use the server, for instance https://app.example; may repeat; default: none",
    repeat: true,
  },
  {
    flag: "--body-mib",
    value: "N",
    describe: "largest batch to train on in one request",
    default: "32",
  },
  {
    flag: "--bodies-mib",
    value: "N",
    describe: "memory for all requests that arrive or wait, at least twice --body-mib",
    default: "512",
  },
];

/** @throws {ConfigError} for an invalid host name. */
export function allowedHosts(options: Input["options"]): string[] {
  return listOf(options.allowHost).map((name) => {
    if (isHostName(name)) return name.toLowerCase();
    throw new ConfigError(`Cannot allow the host ${JSON.stringify(name)}: --allow-host takes a name without a port.`);
  });
}

/** Returns the options of `createApp` and `listen`. @throws {ConfigError} */
export function httpSettings(options: Input["options"]) {
  const mebibytes = (name: "bodyMib" | "bodiesMib", flag: string) =>
    integerOption(options[name], { flag, least: 1, most: 2 ** 20 }) * 2 ** 20;
  const bodyBytes = mebibytes("bodyMib", "--body-mib");
  const bodiesBytes = mebibytes("bodiesMib", "--bodies-mib");
  if (bodiesBytes < 2 * bodyBytes)
    throw new ConfigError(
      `Cannot hold requests: --bodies-mib must be at least twice --body-mib (${bodiesBytes / 2 ** 20} and ${bodyBytes / 2 ** 20}). Raise --bodies-mib.`,
    );
  return {
    host: String(options.host),
    allowedHosts: allowedHosts(options),
    allowedOrigins: listOf(options.cors).map(checkOriginName),
    bodyBytes,
    bodiesBytes,
  };
}

function listOf(value: Input["options"][string]): readonly string[] {
  return Array.isArray(value) ? value : [];
}
