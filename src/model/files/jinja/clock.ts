/** `strftime_now`: the date in English, whatever the language of the machine. */

const MONTHS = "January February March April May June July August September October November December".split(" ");
const DAYS = "Sunday Monday Tuesday Wednesday Thursday Friday Saturday".split(" ");

const two = (value: number) => String(value).padStart(2, "0");
const hour12 = (date: Date) => date.getHours() % 12 || 12;

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
  j: (date) =>
    String(
      Math.round(
        (Date.UTC(date.getFullYear(), date.getMonth(), date.getDate()) - Date.UTC(date.getFullYear(), 0, 0)) / 864e5,
      ),
    ).padStart(3, "0"),
  "%": () => "%",
};

/** The date in local time, as Python's `strftime` in its C locale. @throws for an unknown directive. */
export function strftime(format: string, date: Date): string {
  return format.replace(/%(-?)(.?)/gs, (whole, dash: string, letter: string) => {
    const directive = DIRECTIVES[letter];
    if (!directive) throw new Error(`strftime_now has no directive ${whole}`);
    const text = directive(date);
    return dash ? text.replace(/^[0 ](?=\d)/, "") : text;
  });
}
