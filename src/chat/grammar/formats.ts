/** Formats of strings as patterns. Every text of a pattern has its format; the pattern leaves out rare ones, and long ones. */

/** No text of a pattern has as many characters. */
export const LONGEST_FORMAT = 1000;

/** Dates of the years 1000 to 2999, which the dates of every language hold. */
const DATE = String.raw`(?:[12]\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))|(?:[12]\d(?:0[48]|[2468][048]|[13579][26])|(?:1[26]|2[048])00)-02-29)`;
const TIME = String.raw`(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)`;

const HOURS = String.raw`(?:\d{1,9}H(?:\d{1,9}M(?:\d{1,9}S)?)?|\d{1,9}M(?:\d{1,9}S)?|\d{1,9}S)`;
const DAYS = String.raw`(?:\d{1,9}Y(?:\d{1,9}M(?:\d{1,9}D)?)?|\d{1,9}M(?:\d{1,9}D)?|\d{1,9}D)`;

const LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,60}[A-Za-z0-9])?";
const SHORT_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,28}[A-Za-z0-9])?";
/** Pattern like {@link LABEL}, of any length. */
const FREE_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?";
const WORD = "[A-Za-z0-9_+-]{1,30}";

const OCTET = String.raw`(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)`;
const HEX = "[0-9A-Fa-f]{1,4}";
/** Patterns with a `::` in place of one group of zeros or more. */
const SHORT_IPV6 = [1, 2, 3, 4, 5, 6].map((count) => `(?:${HEX}:){${count}}(?::${HEX}){1,${7 - count}}`);

const CHARACTER = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";

/** Patterns by the name of a format. Other formats are annotations. */
export const FORMATS: ReadonlyMap<string, string> = new Map([
  ["date-time", `${DATE}T${TIME}`],
  ["date", DATE],
  ["time", TIME],
  ["duration", String.raw`P(?:\d{1,9}W|T${HOURS}|${DAYS}(?:T${HOURS})?)`],
  ["email", String.raw`${WORD}(?:\.${WORD}){0,1}@(?:${SHORT_LABEL}\.){1,3}[A-Za-z]{2,18}`],
  ["hostname", String.raw`${LABEL}(?:\.${LABEL}){0,3}`],
  ["ipv4", String.raw`(?:${OCTET}\.){3}${OCTET}`],
  ["ipv6", `(?:${HEX}:){7}${HEX}|${SHORT_IPV6.join("|")}|(?:${HEX}:){1,7}:|:(?::${HEX}){1,7}|::`],
  ["uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"],
  [
    "uri",
    String.raw`[A-Za-z][A-Za-z0-9+.-]{0,9}://${SHORT_LABEL}(?:\.${SHORT_LABEL}){0,3}(?::[1-9]\d{0,3})?(?:/${CHARACTER}{0,30}){0,4}(?:\?${CHARACTER}{0,40})?(?:#${CHARACTER}{0,20})?`,
  ],
]);

/** The longest text for which {@link SHORT_FORMATS} hold: that of a label in the name of a host. */
export const SHORT_FORMAT = 63;

/** Patterns without limits of their own, so that they lead to few states together with a length. */
export const SHORT_FORMATS: ReadonlyMap<string, string> = new Map([
  ["email", String.raw`[A-Za-z0-9_+-]+(?:\.[A-Za-z0-9_+-]+)*@(?:${FREE_LABEL}\.)+[A-Za-z]{2,}`],
  ["hostname", String.raw`${FREE_LABEL}(?:\.${FREE_LABEL})*`],
  [
    "uri",
    String.raw`[A-Za-z][A-Za-z0-9+.-]*://${FREE_LABEL}(?:\.${FREE_LABEL})*(?:/${CHARACTER}*)*(?:\?${CHARACTER}*)?(?:#${CHARACTER}*)?`,
  ],
  ["duration", String.raw`P(?:\d+W|\d+D|T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)|\d+D(?:T\d+H)?)`],
]);
