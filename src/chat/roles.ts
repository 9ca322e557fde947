/** Roles of messages. */
import type { ChatMessage } from "../engine/contract/text.ts";
import { ConfigError } from "../leaves/errors.ts";

/** Roles of OpenAI's chat API; `developer` is read as `system`. */
const ROLES: ReadonlySet<string> = new Set(["system", "developer", "user", "assistant", "tool", "function"]);

/**
 * Most templates skip the messages of roles that they do not know.
 * @throws {ConfigError} for a role that is neither of OpenAI's API nor named by the template
 */
export function checkRoles(messages: readonly ChatMessage[], template: string): void {
  const index = messages.findIndex(({ role }) => !ROLES.has(role) && !isNamed(role, template));
  if (index < 0) return;
  throw new ConfigError(
    `Cannot read message ${index}: the chat template does not name its role (${messages[index]!.role.slice(0, 80)}). Use system, user, assistant or tool.`,
  );
}

function isNamed(role: string, template: string): boolean {
  return template.includes(`'${role}'`) || template.includes(`"${role}"`);
}
