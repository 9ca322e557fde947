/** Secrets inside texts: passwords in addresses, and tokens whose form is well known. */

export const MASK = "********";

const URL_PASSWORD = /(\b[a-z][a-z0-9+.-]*:\/\/[^\s/:@]*:)[^\s/]+@/gi;
const QUERY_PASSWORD = /([?&](?:[\w.-]*[_-])?(?:token|secret|password|passwd|api_?key)=)[^\s&#]+/gi;
const KNOWN_TOKEN =
  /\b(sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|tml-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,})\b/g;

/** Masks what looks like a secret inside a longer text, for instance a quoted override. */
export function maskText(text: string): string {
  return text.replace(URL_PASSWORD, `$1${MASK}@`).replace(QUERY_PASSWORD, `$1${MASK}`).replace(KNOWN_TOKEN, MASK);
}
