/** Encryption in age's format, read back by age's own package. */
import { mkdtemp, readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Decrypter } from "age-encryption";
import { describe, expect, test } from "vitest";
import { checkRecipients, encryptFolder } from "../../../src/serve/tinker/checkpoint/age.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";

/** For tests alone; the file was made with pyrage 1.4.0, another implementation of the format. */
const IDENTITY = "AGE-SECRET-KEY-1PDUNCAS8AS64JGUNX927R3NJ95XP3CEHZF3QJFZANYNP6E96C27SLUU5FG";
const RECIPIENT = "age1rn2alw350zve3qf07vzl5lcey50dkrdj03c5hengwp56v9fdrcyqdyyynl";
const BY_RAGE =
  "YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IFgyNTUxOSB2VUlpbmR3TUdEVjdvYndCRERZRkljQjRQMzhVWEVtRjRscUk1aWhNK1hnCnpGbC8va1c4aDNhWGxaZlVHNW05d3Y1MUV4REdCSzBGNS9hSC93UmNGMEEKLT4gK0BeXzUtZ3JlYXNlIEJldU8wSkkgbmU9VyYgfVQoCnRPQ2ljcUFxSmMrYjJhb0QxWTV0azFUcHNFRW15QnFrUVpQRWhMOVZ3czVWWTZiZVJCZkN4UFVCV1kvNW5qczMKRFpqdm5oSkJFOVl0S3p4WjRmbmM5UFFDUSttdGZQVXltUit0QXVhazBacndueGJWZkZhQkNaNVUKLS0tIFlvK2QyNjFkMCtpU3B4cG5YazBtSHZZSnlGdnIxY3IzWUM3bWFVeVJYVUkKez5foR0YyQykbEMrKVcP91cZcQVuBvIJlu48iwioNdWZ6Ok/PB6gsfpBC7ELrqoK";
const OTHER = "age1nevkku5qmfjk4gk9725dve3zlhekfqxna0z4tmx6zsav2wthufqs37mmhv";

const root = temporaryFolder("age");

function decrypt(file: Uint8Array): Promise<Uint8Array> {
  const decrypter = new Decrypter();
  decrypter.addIdentity(IDENTITY);
  return decrypter.decrypt(file);
}

/** The one file of a folder that held `content`. */
async function encrypted(content: Uint8Array, recipients: readonly string[]): Promise<Uint8Array> {
  const dir = await mkdtemp(join(root, "files-"));
  await writeFile(join(dir, "adapter_model.safetensors"), content);
  await encryptFolder(dir, recipients);
  expect(await readdir(dir)).toEqual(["adapter_model.safetensors.age"]);
  return readFile(join(dir, "adapter_model.safetensors.age"));
}

test("a file of another implementation is read by the decrypter of these tests", async () => {
  expect(Buffer.from(await decrypt(Buffer.from(BY_RAGE, "base64"))).toString()).toBe("once upon a time");
});

describe("an encrypted file", () => {
  test.each([0, 1, 65_535, 65_536, 65_537, 131_072, 200_003])(
    "of %d bytes is read by its recipient",
    async (length) => {
      const content = Uint8Array.from({ length }, (_, i) => (i * 7 + (i >> 8)) & 255);
      const file = await encrypted(content, [RECIPIENT]);
      expect(file.length).toBeGreaterThan(length);
      expect(Buffer.from(await decrypt(file)).equals(content)).toBe(true);
    },
  );

  test("is read by each of its recipients alone", async () => {
    const content = Buffer.from("abc");
    expect(Buffer.from(await decrypt(await encrypted(content, [OTHER, RECIPIENT]))).toString()).toBe("abc");
    await expect(decrypt(await encrypted(content, [OTHER]))).rejects.toThrow("no identity matched");
  });
});

describe("recipients", () => {
  test.each([
    ["an SSH key", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHsKLqeplhpW+uObz5dvMgjz1OxfM/XXUB+VHtZ6isGN"],
    ["a changed letter", RECIPIENT.replace(/.$/, (it) => (it === "q" ? "p" : "q"))],
    ["a secret key", IDENTITY],
    ["a key that is too short", "age1qqqsyqcyq5rqwzqfpg9scrgwpugpzysnryu6xr"],
    ["nothing", ""],
  ])("%s is refused by its place", (_, text) => {
    expect(() => checkRecipients([RECIPIENT, text])).toThrow(
      /age_encryption_recipients\[1\] is not a public key of age/,
    );
  });

  test("there are at most 10", () => {
    expect(() => checkRecipients(Array(10).fill(RECIPIENT))).not.toThrow();
    expect(() => checkRecipients(Array(11).fill(RECIPIENT))).toThrow("has 11 recipients");
  });
});
