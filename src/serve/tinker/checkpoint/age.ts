/** Files encrypted to recipients of age (age-encryption.org/v1), by age's own package. */
import { open, rm } from "node:fs/promises";
import { join } from "node:path";
import { Readable } from "node:stream";
import type { ReadableStream } from "node:stream/web";
import { Encrypter } from "age-encryption";
import { Refusal } from "../protocol/outcome.ts";
import { publicFiles } from "./archive.ts";

/** Recipients that the protocol allows. */
const MOST_RECIPIENTS = 10;

/** @throws Refusal 422 for more than 10 recipients, and for one that is not a public key of age. */
export function checkRecipients(recipients: readonly string[]): void {
  if (recipients.length > MOST_RECIPIENTS)
    throw new Refusal(
      422,
      `Cannot encrypt the files: age_encryption_recipients has ${recipients.length} recipients. Give at most ${MOST_RECIPIENTS}.`,
    );
  for (const [index, recipient] of recipients.entries()) checkRecipient(recipient, index);
}

function checkRecipient(recipient: string, index: number): void {
  try {
    new Encrypter().addRecipient(recipient);
  } catch {
    throw new Refusal(
      422,
      `Cannot encrypt the files: age_encryption_recipients[${index}] is not a public key of age (${recipient.slice(0, 80)}). Give the one that age-keygen prints, age1...; SSH keys are not supported.`,
    );
  }
}

/** Replaces each of a checkpoint's public files by `NAME.age`, encrypted to the recipients. */
export async function encryptFolder(dir: string, recipients: readonly string[]): Promise<void> {
  const encryptor = new Encrypter();
  for (const recipient of recipients) encryptor.addRecipient(recipient);
  for (const name of await publicFiles(dir)) {
    await encryptFile(join(dir, name), encryptor);
    await rm(join(dir, name));
  }
}

async function encryptFile(path: string, encryptor: Encrypter): Promise<void> {
  const plain = await open(path);
  try {
    const content = Readable.toWeb(plain.createReadStream({ autoClose: false })) as ReadableStream<Uint8Array>;
    const encrypted = await encryptor.encrypt(content as globalThis.ReadableStream<Uint8Array>);
    const file = await open(`${path}.age`, "wx", 0o600);
    try {
      for await (const chunk of encrypted as ReadableStream<Uint8Array>) await file.writeFile(chunk);
      await file.sync();
    } finally {
      await file.close();
    }
  } finally {
    await plain.close();
  }
}
