/** Builtins and small programs that print: `echo`, `printf`, `cat`, `basename`, `dirname`, `seq`. */
import { forget, type ShellCall } from "./call.ts";
import type { Flow, Shell } from "./shell.ts";
import { commandText, isKnown, knownTail } from "./text.ts";

export function print(shell: Shell, { isPrinting }: ShellCall, text: string): Flow {
  if (isPrinting) shell.print(text);
  return shell.succeed(true);
}

export function echo(shell: Shell, call: ShellCall): Flow {
  const flags = call.args.findIndex(({ text }) => !/^-[neE]+$/.test(text));
  const count = flags < 0 ? call.args.length : flags;
  const options = call.args
    .slice(0, count)
    .map(({ text }) => text)
    .join("");
  const text = call.args
    .slice(count)
    .map((word) => word.text)
    .join(" ");
  const isEscaped = options.includes("e") && text.includes("\\");
  if (isEscaped) return print(shell, call, shell.session.unknown("the output of `echo -e`", call.line).text);
  return print(shell, call, options.includes("n") ? text : `${text}\n`);
}

export function printf(shell: Shell, call: ShellCall): Flow {
  const [format, ...values] = call.args.map(({ text }) => text);
  if (format === "-v" || format === undefined) return forget(shell, call, "printf");
  const places = format.match(/%[sd%]/g) ?? [];
  const isPlain = !/%[^sd%]/.test(format) && !/\\[^n]/.test(format);
  const isOnce = values.length === places.filter((place) => place !== "%%").length;
  if (!isPlain || !isOnce) return print(shell, call, shell.session.unknown("the output of `printf`", call.line).text);
  let next = 0;
  const text = format.replace(/%[sd%]/g, (place) => (place === "%%" ? "%" : values[next++]!));
  return print(shell, call, text.replaceAll("\\n", "\n"));
}

/** `cat <<EOF`: the text itself. */
export function cat(shell: Shell, call: ShellCall): Flow {
  const document = call.node.redirects.find(
    (redirect) => redirect.type === "HereDoc" || redirect.type === "HereString",
  );
  if (document === undefined || call.args.length > 0) {
    return print(shell, call, shell.session.unknown(`the output of \`cat ${commandText(call.args)}\``, call.line).text);
  }
  if (document.type === "HereString") {
    const text = document.target === undefined ? "" : shell.expandText(document.target);
    return print(shell, call, `${text}\n`);
  }
  const { body, delimiter, operator } = document;
  const text = delimiter?.quoted ? body.text : shell.expandText(body);
  return print(shell, call, operator === "<<-" ? text.replace(/^\t+/gm, "") : text);
}

export function namePart(shell: Shell, call: ShellCall, command: "basename" | "dirname"): Flow {
  const [path, suffix, more] = call.args.map(({ text }) => text);
  const unknown = () =>
    print(shell, call, shell.session.unknown(`the output of \`${command} ${commandText(call.args)}\``, call.line).text);
  const isPlain = path !== undefined && more === undefined && !path.startsWith("-") && !/\/$/.test(path);
  if (!isPlain || !knownTail(path).includes("/")) {
    if (!isPlain || !isKnown(path)) return unknown();
    return print(shell, call, `${command === "basename" ? withoutSuffix(path, suffix) : "."}\n`);
  }
  const slash = path.lastIndexOf("/");
  if (command === "dirname") {
    const folder = path.slice(0, slash).replace(/\/+$/, "");
    return print(shell, call, `${folder === "" ? "/" : folder}\n`);
  }
  return print(shell, call, `${withoutSuffix(path.slice(slash + 1), suffix)}\n`);
}

function withoutSuffix(name: string, suffix: string | undefined): string {
  return suffix && name !== suffix && name.endsWith(suffix) ? name.slice(0, -suffix.length) : name;
}

export function seq(shell: Shell, call: ShellCall): Flow {
  const numbers = call.args.map(({ text }) => (/^-?\d+$/.test(text) ? Number(text) : Number.NaN));
  const [first, step, last] =
    numbers.length === 1 ? [1, 1, numbers[0]] : numbers.length === 2 ? [numbers[0], 1, numbers[1]] : numbers;
  const count = Math.floor((last! - first!) / step) + 1;
  if (!(count >= 0 && count <= 10_000)) {
    return print(shell, call, shell.session.unknown("the output of `seq`", call.line).text);
  }
  return print(shell, call, Array.from({ length: count }, (_, i) => `${first! + i * step}\n`).join(""));
}
