/** Curves with their spread as an SVG image. */
export interface Curve {
  readonly name: string;
  readonly points: readonly {
    readonly step: number;
    readonly mean: number;
    readonly least: number;
    readonly most: number;
  }[];
}

const [WIDTH, HEIGHT, LEFT, TOP, PLOT_WIDTH, PLOT_HEIGHT] = [760, 400, 50, 36, 520, 320];
/** Distinct in the common forms of colour blindness, on white and on dark; dashes tell the second and the third five from the first. */
const COLORS = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7"];
const DASHES = ["", "6 4", "2 3"];

/** @param about.y what the values are, in [0, 1] */
export function curvesSvg(curves: readonly Curve[], about: { title: string; y: string }): string {
  const lastStep = Math.max(...curves.flatMap(({ points }) => points.map(({ step }) => step)));
  const x = (step: number) => LEFT + (PLOT_WIDTH * step) / lastStep;
  const y = (value: number) => TOP + PLOT_HEIGHT * (1 - value);
  const path = (points: readonly (readonly [number, number])[]) =>
    points.map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const lines = curves.map(({ name, points }, i) => {
    const color = COLORS[i % COLORS.length]!;
    const dashes = DASHES[Math.floor(i / COLORS.length) % DASHES.length];
    const dash = dashes ? ` stroke-dasharray="${dashes}"` : "";
    const area = [
      ...points.map(({ step, most }) => [step, most] as const),
      ...points.toReversed().map(({ step, least }) => [step, least] as const),
    ];
    const label = TOP + 12 + 20 * i;
    return `  <polygon points="${path(area)}" fill="${color}" opacity="0.08"/>
  <polyline points="${path(points.map(({ step, mean }) => [step, mean]))}" fill="none" stroke="${color}" stroke-width="2"${dash}/>
  <line x1="${WIDTH - 170}" x2="${WIDTH - 140}" y1="${label}" y2="${label}" stroke="${color}" stroke-width="2"${dash}/>
  <text x="${WIDTH - 132}" y="${label + 4}">${name}</text>`;
  });
  const ticks = [0, 0.25, 0.5, 0.75, 1].map(
    (
      value,
    ) => `  <line x1="${LEFT}" x2="${LEFT + PLOT_WIDTH}" y1="${y(value)}" y2="${y(value)}" stroke="#888" opacity="0.3"/>
  <text x="${LEFT - 8}" y="${y(value) + 4}" text-anchor="end">${value}</text>`,
  );
  const steps = [0, 0.5, 1].map(
    (share) =>
      `  <text x="${x(share * lastStep)}" y="${TOP + PLOT_HEIGHT + 20}" text-anchor="middle">${share * lastStep}</text>`,
  );
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" font-family="sans-serif" font-size="12" fill="#666">
  <title>${about.title}: ${about.y} by training step</title>
  <text x="${LEFT}" y="20">${about.title}: ${about.y} by training step</text>
${[...ticks, ...steps, ...lines].join("\n")}
</svg>
`;
}
