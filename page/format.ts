/** Numbers and times for people. */

export const trimmed = (text: string) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

/** Three significant digits: `0.123`, `1.2e−5`, `12.3k`, `3.4M`; `–` for no number. */
export function number(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${trimmed((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${trimmed((value / 1e3).toPrecision(3))}k`;
  if (size >= 100) return value.toFixed(0);
  if (size > 0 && size < 1e-3) return value.toExponential(1).replace("e-", "e−");
  return trimmed(value.toPrecision(3));
}

/** Five significant digits, for a value that is read off. */
export const precise = (value: number) =>
  Math.abs(value) >= 1e-4 || value === 0 ? String(Number(value.toPrecision(5))) : value.toExponential(2);

/** `12 s`, `3:05 min`, `1:02:03`. */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const two = (value: number) => String(value).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  return hours > 0 ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)} min`;
}

/** `12,345`. */
export const counted = (value: number) => value.toLocaleString("en");
