/** `strftime_now`: the date in English, whatever the language of the machine. */

const MONTHS = "January February March April May June July August September October November December".split(" ");
const DAYS = "Sunday Monday Tuesday Wednesday Thursday Friday Saturday".split(" ");

const two = (value: number) => String(value).padStart(2, "0");
const hour12 = (date: Date) => date.getHours() % 12 || 12;

const DAY_MS = 864e5;
const dayOfYear = (date: Date) =>
  Math.round(
    (Date.UTC(date.getFullYear(), date.getMonth(), date.getDate()) - Date.UTC(date.getFullYear(), 0, 0)) / DAY_MS,
  );
/** Weeks of the year that began on a day: 0 is Sunday. */
const weeks = (date: Date, first: number) =>
  two(Math.floor((dayOfYear(date) + 6 - ((date.getDay() - first + 7) % 7)) / 7));

/** Year and number of the week of ISO 8601, which is that of its Thursday. */
function isoWeek(date: Date): readonly [year: number, week: number] {
  const thursday = new Date(date.getFullYear(), date.getMonth(), date.getDate() + 4 - (date.getDay() || 7));
  return [thursday.getFullYear(), Math.ceil(dayOfYear(thursday) / 7)];
}

const DIRECTIVES: Readonly<Record<string, (date: Date) => string>> = {
  Y: (date) => String(date.getFullYear()),
  y: (date) => two(date.getFullYear() % 100),
  m: (date) => two(date.getMonth() + 1),
  d: (date) => two(date.getDate()),
  e: (date) => String(date.getDate()).padStart(2, " "),
  B: (date) => MONTHS[date.getMonth()]!,
  b: (date) => MONTHS[date.getMonth()]!.slice(0, 3),
  A: (date) => DAYS[date.getDay()]!,
  a: (date) => DAYS[date.getDay()]!.slice(0, 3),
  H: (date) => two(date.getHours()),
  I: (date) => two(hour12(date)),
  M: (date) => two(date.getMinutes()),
  S: (date) => two(date.getSeconds()),
  p: (date) => (date.getHours() < 12 ? "AM" : "PM"),
  j: (date) => String(dayOfYear(date)).padStart(3, "0"),
  h: (date) => MONTHS[date.getMonth()]!.slice(0, 3),
  k: (date) => String(date.getHours()).padStart(2, " "),
  l: (date) => String(hour12(date)).padStart(2, " "),
  f: (date) => String(date.getMilliseconds() * 1000).padStart(6, "0"),
  C: (date) => two(Math.floor(date.getFullYear() / 100)),
  G: (date) => String(isoWeek(date)[0]),
  V: (date) => two(isoWeek(date)[1]),
  U: (date) => weeks(date, 0),
  W: (date) => weeks(date, 1),
  u: (date) => String(date.getDay() || 7),
  w: (date) => String(date.getDay()),
  // The date has no time zone.
  z: () => "",
  Z: () => "",
  n: () => "\n",
  t: () => "\t",
  "%": () => "%",
};

/** Directives that stand for others. */
const SHORT: Readonly<Record<string, string>> = {
  c: "%a %b %e %H:%M:%S %Y",
  D: "%m/%d/%y",
  F: "%Y-%m-%d",
  R: "%H:%M",
  r: "%I:%M:%S %p",
  T: "%H:%M:%S",
  X: "%H:%M:%S",
  x: "%m/%d/%y",
};

/** The date in local time, as Python's `strftime` in its C locale. @throws for an unknown directive. */
export function strftime(format: string, date: Date): string {
  return format.replace(/%(-?)(.?)/gs, (whole, dash: string, letter: string) => {
    if (Object.hasOwn(SHORT, letter)) return strftime(SHORT[letter]!, date);
    const directive = Object.hasOwn(DIRECTIVES, letter) ? DIRECTIVES[letter] : undefined;
    if (!directive) throw new Error(`strftime_now has no directive ${whole}`);
    const text = directive(date);
    return dash ? text.replace(/^[0 ](?=\d)/, "") : text;
  });
}
