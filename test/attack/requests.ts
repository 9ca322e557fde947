/** Requests that are wrong as HTTP or come from where they should not, as bytes on a socket, for any server. */

export interface Hostile {
  readonly name: string;
  /** Made when they are sent: some are large. */
  readonly pieces: () => readonly (string | Uint8Array)[];
  /** 0: the connection may be closed without an answer. */
  readonly statuses: readonly number[];
  readonly pauseMs?: number;
}

const CLOSED = 0;

/** At any server: requests that are wrong as HTTP, or come from where they should not. */
export const ANYWHERE: readonly Hostile[] = [
  line("a target that is no URL", "GET // HTTP/1.1", 400, 401, 404),
  line("an absolute target that is no URL", "GET http://[ HTTP/1.1", 400),
  line("an absolute target of another host", "GET http://evil.example/ HTTP/1.1", 400),
  line("a target without a path", "GET ? HTTP/1.1", 400),
  line("a target of bytes", "GET /\u00e4\u0001 HTTP/1.1", 400),
  line("a target with a fragment of a port", "GET //:99999999/ HTTP/1.1", 400, 401, 404),
  line("an asterisk", "OPTIONS * HTTP/1.1", 400),
  line("a tunnel", "CONNECT evil.example:443 HTTP/1.1", 400, CLOSED),
  line("an upgrade", "GET / HTTP/1.1\r\nUpgrade: websocket", 200, 401),
  line("a method that is none", "BREW / HTTP/1.1", 400),
  line("a broken escape", "GET /%ff%zz HTTP/1.1", 404, 401, 400),
  line("a way out of the folder", "GET /../../../../etc/passwd HTTP/1.1", 404, 401),
  line("an escaped way out", "GET /%2e%2e/%2e%2e/%2e%2e/etc/passwd HTTP/1.1", 404, 401),
  line("a way out within", "GET /archives/..%2f..%2f..%2fetc%2fpasswd HTTP/1.1", 404, 401),
  line("an address of 15 KB", `GET /${"x".repeat(15_000)} HTTP/1.1`, 404, 401),
  line("an address of 60 KB", `GET /${"x".repeat(60_000)} HTTP/1.1`, 431, 400),
  line("headers of 60 KB", `GET / HTTP/1.1\r\nX: ${"x".repeat(60_000)}`, 431),
  line("3,000 headers", `GET / HTTP/1.1\r\n${Array.from({ length: 3000 }, () => "a:b").join("\r\n")}`, 431, 400),
  raw("no host", "GET / HTTP/1.1\r\n\r\n", 400),
  raw("two hosts", "GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
  raw("an old request without a host", "GET / HTTP/1.0\r\n\r\n", 400),
  raw("another host", "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, 401),
  raw("a host with a user", "GET / HTTP/1.1\r\nHost: a@localhost\r\n\r\n", 400, 403, 401),
  raw("another origin", "GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n", 403),
  raw(
    "another origin's preflight",
    "OPTIONS / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n",
    403,
  ),
  raw("no HTTP", "\u0016\u0003\u0001\u0002\u0000\u0001\u0000", 400),
  raw("a body of two lengths", post("Content-Length: 5\r\nContent-Length: 6", "hello!"), 400),
  raw("a length and chunks", post("Content-Length: 5\r\nTransfer-Encoding: chunked", "0\r\n\r\nX"), 400),
  raw("chunks named twice", post("Transfer-Encoding: chunked, chunked", "0\r\n\r\n"), 400, 501, 415),
  raw("chunks of another kind", post("Transfer-Encoding: xchunked", "0\r\n\r\n"), 400, 501),
  raw("a length that is none", post("Content-Length: 0x10", "hello"), 400),
  raw("a negative length", post("Content-Length: -1", "hello"), 400),
  raw("a chunk of no size", post("Transfer-Encoding: chunked", "zz\r\nhello\r\n0\r\n\r\n"), 400, 401, 405, CLOSED),
  raw(
    "a chunk of too large a size",
    post("Transfer-Encoding: chunked", "fffffffffffffffff\r\n"),
    400,
    401,
    405,
    CLOSED,
  ),
  raw(
    "a second request in the body",
    `${post("Content-Length: 0", "")}GET /smuggled HTTP/1.1\r\n\r\n`,
    400,
    401,
    404,
    405,
    422,
  ),
  { ...raw("headers that never end", "GET / HTTP/1.1\r\nHost: localhost\r\nX: ", 408, CLOSED), pauseMs: 100 },
  {
    name: "headers that come byte by byte",
    pieces: () => [..."GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: aaaaaaaaaaaaaaaaaaaaaaaaaaaa"],
    statuses: [408, CLOSED],
    pauseMs: 60,
  },
  { name: "nothing at all", pieces: () => [""], statuses: [408, CLOSED] },
  raw("a body that never comes", post("Content-Length: 1000", ""), 408, 401, 405, 404, CLOSED),
];

function line(name: string, first: string, ...statuses: number[]): Hostile {
  return raw(name, `${first}\r\nHost: localhost\r\nConnection: close\r\n\r\n`, ...statuses);
}

function raw(name: string, text: string, ...statuses: number[]): Hostile {
  return { name, pieces: () => [Buffer.from(text, "latin1")], statuses };
}

function post(headers: string, body: string): string {
  return `POST /api/v1/create_session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n${headers}\r\n\r\n${body}`;
}
