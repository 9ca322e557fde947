/** The API key in a request. */

/** The key from the SDK's header, from Authorization or, for pages that a person opens, from the query. */
export function keyIn(request: Request, { allowsQuery }: { readonly allowsQuery: boolean }): string | undefined {
  const { headers } = request;
  const bearer = headers.get("authorization")?.replace(/^bearer\s+/i, "");
  const key = headers.get("x-api-key") ?? bearer;
  if (key !== undefined || !allowsQuery) return key;
  return new URL(request.url).searchParams.get("key") ?? undefined;
}

/** Compares digests, which have equal lengths, in constant time, so that the time taken does not reveal how much of a guess is right. */
export function areEqual(a: Uint8Array, b: Uint8Array): boolean {
  let difference = a.length ^ b.length;
  for (let i = 0; i < a.length; i++) difference |= a[i]! ^ b[i]!;
  return difference === 0;
}

/** Keys are compared, and kept, as digests. */
export async function digestOf(text: string): Promise<Uint8Array> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
}

/** A digest as text, for files. */
export function toHex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The bytes of {@link toHex}; of other text, bytes that no digest has. */
export function fromHex(text: string): Uint8Array {
  return Uint8Array.from(text.match(/../g) ?? [], (digits) => Number.parseInt(digits, 16));
}
