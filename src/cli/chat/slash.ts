/** Commands of a chat: lines that begin with a slash. */

import type { Talk } from "../../chat/talk.ts";
import { writeText } from "../../train/run/files.ts";

/** The chat's next act after a command. */
export type SlashEffect = "continue" | "retry" | "leave";

export interface SlashContext {
  readonly talk: Talk;
  /** Prints lines for the person. */
  readonly say: (text: string) => void;
}

interface Slash {
  readonly usage: string;
  readonly describe: string;
  run(argument: string, context: SlashContext): SlashEffect;
}

const COMMANDS: Readonly<Record<string, Slash>> = {
  help: {
    usage: "/help",
    describe: "these lines",
    run(_, { say }) {
      say(HELP());
      return "continue";
    },
  },
  reset: {
    usage: "/reset",
    describe: "forget what was said; the system prompt stays",
    run(_, { talk, say }) {
      talk.reset();
      say("a new conversation");
      return "continue";
    },
  },
  system: {
    usage: "/system [TEXT]",
    describe: "a new conversation with this system prompt, or none",
    run(text, { talk, say }) {
      talk.system = text === "" ? undefined : text;
      talk.reset();
      say(text === "" ? "no system prompt; a new conversation" : "a new conversation with that system prompt");
      return "continue";
    },
  },
  set: {
    usage: "/set [KEY=VALUE ...]",
    describe: "show or set temperature, top_p, top_k, max_tokens, seed",
    run(text, { talk, say }) {
      talk.set(text);
      const settings = Object.entries(talk.settings).map(([key, value]) => `${key}=${value}`);
      say(settings.length > 0 ? settings.join(" ") : "the model's own settings");
      return "continue";
    },
  },
  retry: { usage: "/retry", describe: "sample the last reply again", run: () => "retry" },
  save: {
    usage: "/save FILE",
    describe: "write the conversation as JSON, as a chat request",
    run(file, { talk, say }) {
      if (file === "") {
        say("Cannot save: no file is named. Type /save FILE.");
        return "continue";
      }
      const { messages, settings, engine } = talk;
      writeText(file, `${JSON.stringify({ model: engine.model, messages, ...settings }, null, 2)}\n`, "conversation");
      say(`${messages.length} messages in ${file}`);
      return "continue";
    },
  },
  exit: { usage: "/exit", describe: "leave; Ctrl-D does as well", run: () => "leave" },
};

const HELP = () => {
  const lines = Object.values(COMMANDS).map(({ usage, describe }) => `  ${usage.padEnd(22)}${describe}`);
  const more = [
    '  """                   around a message of several lines; \\ at a line\'s end also',
    "  Ctrl-C                stops the reply; at the prompt, twice, leaves",
  ];
  return [...lines, ...more].join("\n");
};

/** Runs a line that begins with a slash. @throws {ConfigError} for a value that cannot be used */
export function runSlash(line: string, context: SlashContext): SlashEffect {
  const [, name = "", argument = ""] = /^\/(\S*)\s*([\s\S]*)$/.exec(line) ?? [];
  const command = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : name === "quit" ? COMMANDS.exit : undefined;
  if (command) return command.run(argument.trim(), context);
  context.say(`There is no command /${name}. /help lists them; a message may begin with a space and a slash.`);
  return "continue";
}
