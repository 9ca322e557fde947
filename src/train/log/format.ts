/** Numbers and times for people. */

/** Three significant digits: `0.123`, `12.3`, `1.2k`, `3.4M`. */
export function shortNumber(value: number): string {
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size >= 1e6) return `${trim((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${trim((value / 1e3).toPrecision(3))}k`;
  if (size >= 100) return value.toFixed(0);
  if (size === 0) return "0";
  if (size < 1e-4) return value.toExponential(1);
  return trim(value.toPrecision(3));
}

function trim(text: string): string {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** `12 s`, `3:05`, `1:02:03`. */
export function clockDuration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  const two = (value: number) => String(value).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  return hours > 0 ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** `label`, then a text in a column of its own, folded at spaces to the terminal's width. */
export function labelled(label: string, text: string, columns: number): string {
  const margin = label.padEnd(8);
  const lines: string[] = [];
  for (const word of text.split(" ")) {
    const last = lines.at(-1);
    if (last !== undefined && margin.length + last.length + 1 + word.length < columns)
      lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
  }
  return lines.map((line, i) => `${i === 0 ? margin : " ".repeat(8)}${line}\n`).join("");
}

const BARS = "▁▂▃▄▅▆▇█";

/** A curve in `width` characters, from the smallest value to the largest; averages where there are more values. */
export function sparkline(values: readonly number[], width: number): string {
  if (values.length === 0) return "";
  const columns = Math.min(width, values.length);
  const means = Array.from({ length: columns }, (_, i) => {
    const part = values.slice(
      Math.floor((i * values.length) / columns),
      Math.floor(((i + 1) * values.length) / columns),
    );
    return part.reduce((sum, value) => sum + value, 0) / part.length;
  });
  const [low, high] = [Math.min(...means), Math.max(...means)];
  const level = (value: number) => (high > low ? Math.round(((value - low) / (high - low)) * (BARS.length - 1)) : 0);
  return means.map((value) => BARS[level(value)]).join("");
}
