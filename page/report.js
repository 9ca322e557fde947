/**
 * Draws the page of one run or several from the JSON beside it (`PageData` of src/log/page/report.ts), and again whenever
 * its server has news. Plain JavaScript for browsers: it is inlined as it is. Charts are uPlot's.
 */
const root = document.documentElement;
const page = /** @type {HTMLElement} */ (document.getElementById("page"));
const said = /** @type {HTMLElement} */ (document.getElementById("said"));
let data = JSON.parse(document.getElementById("data")?.textContent ?? "{}");
const state = {
  hidden: new Set(),
  smoothing: 0.12,
  search: "",
  groupRun: 0,
  groupStep: -1,
  isAllOpen: false,
  isSettingsOpen: false,
  isLost: false,
};

// ---- small helpers ---------------------------------------------------------------------------------------------

/** An element. Text is always text, never markup. */
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") element.setAttribute("style", value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children
      .flat(Number.POSITIVE_INFINITY)
      .filter((child) => child !== undefined && child !== null && child !== ""),
  );
  return element;
}

function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${trimmed((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${trimmed((value / 1e3).toPrecision(3))}k`;
  if (size >= 100) return value.toFixed(0);
  if (size > 0 && size < 1e-3) return value.toExponential(1).replace("e-", "e−");
  return trimmed(value.toPrecision(3));
}
const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const two = (value) => String(value).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  return hours > 0 ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)} min`;
}

const counted = (value) => value.toLocaleString("en");

const color = (i) => `var(--run-${i % 8})`;
const resolved = (name) => getComputedStyle(root).getPropertyValue(name).trim();
const isMany = () => data.runs.length > 1;
const shown = () => data.runs.map((run, i) => ({ run, i })).filter(({ run }) => !state.hidden.has(run.name));

/** Names of a phase over all runs, in order of appearance. */
function names(phase, pattern) {
  const all = new Set(data.runs.flatMap((run) => Object.keys(run.curves[phase])));
  return [...all].filter((name) => pattern.test(name));
}
const curve = (run, phase, name) => run.curves[phase][name];

// ---- header ----------------------------------------------------------------------------------------------------

/** A run that has written nothing for this long is no longer said to be running. */
const QUIET_MS = 120_000;

function statusOf(run) {
  if (run.status === "complete") return ["complete", "complete"];
  if (run.status === "stopped") return ["stopped", "stopped"];
  const now = data.live ? Date.now() : data.made;
  const quiet = now - run.updated;
  if (quiet < QUIET_MS) return ["running", data.live ? "running" : "running when this was made"];
  return ["stopped", `unfinished, silent for ${duration(quiet / 1000)}`];
}

function header() {
  const [first] = data.runs;
  const title = isMany() ? "Runs side by side" : first.title;
  const [kind, text] = isMany() ? ["", ""] : statusOf(first);
  return h("header", {}, [
    h("div", {}, [
      h("h1", {}, title),
      h("p", { class: "soft" }, isMany() ? data.runs.map((run) => run.name).join(" · ") : first.subtitle),
      badLines(),
    ]),
    h("div", { class: "controls" }, [
      state.isLost ? h("span", { class: "badge lost" }, "no longer live") : undefined,
      text ? h("span", { class: `badge ${kind}` }, text) : undefined,
      h("label", {}, [
        "Smoothing",
        h("input", {
          type: "range",
          min: "0",
          max: "0.4",
          step: "0.02",
          value: String(state.smoothing),
          oninput: (event) => {
            state.smoothing = Number(event.target.value);
            drawAll();
          },
        }),
      ]),
      h("button", { type: "button", onclick: toggleTheme }, "Light / dark"),
    ]),
  ]);
}

function badLines() {
  const count = data.runs.reduce((sum, run) => sum + run.badLines, 0);
  if (count === 0) return undefined;
  return h("p", { class: "soft" }, `${count} damaged ${count === 1 ? "line is" : "lines are"} left out`);
}

function toggleTheme() {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  drawAll();
}

function legend() {
  if (!isMany()) return undefined;
  return h(
    "div",
    { class: "legend", role: "group", "aria-label": "Runs" },
    data.runs.map((run, i) => {
      const [kind, text] = statusOf(run);
      return h(
        "button",
        {
          type: "button",
          "aria-pressed": String(!state.hidden.has(run.name)),
          title: `${run.subtitle} (${text})`,
          onclick: () => {
            if (!state.hidden.delete(run.name)) state.hidden.add(run.name);
            render();
          },
        },
        [
          h("span", { class: "swatch", style: `color:${color(i)}` }),
          run.name,
          kind === "running" ? " ●" : "",
        ],
      );
    }),
  );
}

// ---- figures ---------------------------------------------------------------------------------------------------

const sum = (run, phase, name) => curve(run, phase, name)?.sum ?? 0;
const steps = (run) =>
  run.curves.train["training/global_step"]?.last ?? run.curves.train["time/step"]?.count ?? 0;
const seconds = (run) =>
  sum(run, "warmup", "time/step") + sum(run, "train", "time/step") + sum(run, "val", "time/testing");

function tiles() {
  if (isMany()) return undefined;
  const [run] = data.runs;
  const accuracy = names("val", /\/pass@1$/)[0];
  const made = [];
  if (accuracy) made.push(fromTo(curve(run, "val", accuracy), "validation accuracy"));
  if (curve(run, "train", "reward")) made.push(fromTo(curve(run, "train", "reward"), "mean reward"));
  const done = steps(run);
  const total = run.totalSteps;
  made.push(
    h("div", { class: "card tile" }, [
      h("b", {}, total ? `${counted(done)} / ${counted(total)}` : counted(done)),
      h("span", {}, "training steps"),
      total && done < total
        ? h("div", { class: "bar" }, [h("i", { style: `width:${(100 * done) / total}%` })])
        : undefined,
    ]),
  );
  made.push(tile(duration(seconds(run)), "in all"));
  const tokens = sum(run, "train", "perf/total_num_tokens");
  if (tokens > 0) made.push(tile(number(tokens), "tokens trained on"));
  return h("div", { class: "tiles" }, made);
}

const tile = (value, label) => h("div", { class: "card tile" }, [h("b", {}, value), h("span", {}, label)]);

function fromTo({ first, last }, label) {
  const arrow = h("span", { class: "arrow" }, "→");
  return h("div", { class: "card tile" }, [
    h("b", {}, [first.toFixed(2), arrow, last.toFixed(2)]),
    h("span", {}, label),
  ]);
}

/** Of each run side by side; the best of a row is bold where there is a better and a worse. */
function finalFigures() {
  if (!isMany()) return undefined;
  const last = (phase, name) => (run) => curve(run, phase, name)?.last;
  const rows = [
    ...names("val", /\/pass@\d+$/).flatMap((name) => [
      { label: name.slice(4), note: "last", of: last("val", name), better: 1 },
      { label: name.slice(4), note: "best", of: (run) => curve(run, "val", name)?.max, better: 1 },
    ]),
    ...names("val", /^val\/reward\/.*\/mean$/).map((name) => ({
      label: name,
      note: "last",
      of: last("val", name),
      better: 1,
    })),
    { label: "reward", note: "last", of: last("train", "reward"), better: 1 },
    { label: "reward", note: "mean", of: (run) => mean(curve(run, "train", "reward")), better: 1 },
    { label: "training steps", of: steps },
    { label: "time", of: seconds, show: duration },
    { label: "tokens trained on", of: (run) => sum(run, "train", "perf/total_num_tokens") || undefined },
    { label: "tokens/s", note: "mean", of: (run) => mean(curve(run, "train", "perf/throughput")) },
    { label: "actor/entropy", note: "last", of: last("train", "actor/entropy") },
    { label: "actor/ppo_kl", note: "last", of: last("train", "actor/ppo_kl") },
    { label: "response_length/mean", note: "last", of: last("train", "response_length/mean") },
  ].filter((row) => data.runs.some((run) => row.of(run) !== undefined));
  const body = rows.map(({ label, note, of, better, show = number }) => {
    const values = data.runs.map(of);
    const known = values.filter((value) => value !== undefined);
    const best = better && Math.max(...known) > Math.min(...known) ? Math.max(...known) : undefined;
    return h("tr", {}, [
      h("th", { scope: "row" }, [label, note ? h("span", { class: "soft" }, ` ${note}`) : ""]),
      values.map((value) =>
        h(
          "td",
          { class: value === best && best !== undefined ? "number best" : "number" },
          value === undefined ? "–" : show(value),
        ),
      ),
    ]);
  });
  return section("Final figures", undefined, table(["", ...runHeads()], body));
}

const mean = (it) => (it && it.count > 0 ? it.sum / it.count : undefined);
const runHeads = (kind = "number") =>
  data.runs.map((run, i) =>
    h("th", { scope: "col", class: kind }, [
      h("span", { class: "swatch", style: `color:${color(i)};margin-right:7px` }),
      run.name,
    ]),
  );

function table(heads, body, kind = "") {
  const cells = heads.map((head) => (typeof head === "string" ? h("th", { scope: "col" }, head) : head));
  return h("div", { class: "card scroll" }, [
    h("table", { class: kind }, [h("thead", {}, [h("tr", {}, cells)]), h("tbody", {}, body)]),
  ]);
}

function section(title, note, ...content) {
  const inside = content.filter(Boolean);
  if (inside.length === 0) return undefined;
  return h("section", {}, [
    h("h2", {}, title),
    note ? h("p", { class: "soft" }, note) : undefined,
    ...inside,
  ]);
}

function differingSettings() {
  if (!isMany()) return undefined;
  const paths = [...new Set(data.runs.flatMap((run) => Object.keys(run.settings)))];
  const isSame = (path) => new Set(data.runs.map((run) => run.settings[path])).size === 1;
  const rows = paths.filter((path) => !isSame(path)).sort();
  if (data.runs.every((run) => run.config === "")) return undefined;
  if (rows.length === 0) return section("Settings", "All runs have the same settings.", h("div", {}));
  return section(
    "Differing settings",
    undefined,
    table(
      ["", ...runHeads("")],
      rows.map((path) =>
        h("tr", {}, [
          h("th", { scope: "row" }, [h("code", {}, path)]),
          data.runs.map((run) => h("td", { class: "mono value" }, run.settings[path] ?? "–")),
        ]),
      ),
    ),
  );
}

// ---- charts ----------------------------------------------------------------------------------------------------

/** Chart: `title`, `metric` (what stands under it), `phase`, `lines: [{name, label}]`, `unit`, `range`, `isMarked`. */
const at = (title, name, more = {}) => ({
  title,
  metric: name,
  phase: "train",
  lines: [{ name }],
  ...more,
});

const isShare = (phase, name) =>
  data.runs.every((run) => {
    const it = curve(run, phase, name);
    return !it || (it.min >= 0 && it.max <= 1);
  });

function trainingCharts() {
  const charts = [
    at("Reward", "reward", {
      metric: "reward/<role>/mean",
      range: isShare("train", "reward") ? [0, 1] : undefined,
    }),
  ];
  const roles = names("train", /^reward\/.*\/mean$/);
  if (roles.length > 1) for (const name of roles) charts.push(at(`Reward of ${name.split("/")[1]}`, name));
  for (const [source, list] of bySource(names("val", /\/pass@\d+$/))) {
    const lines = list.map((name) => ({ name, label: name.split("/").at(-1) }));
    charts.push({
      title: "Validation accuracy",
      metric: list.length > 1 ? `${source}/pass@k` : list[0],
      phase: "val",
      lines,
      range: [0, 1],
      isMarked: true,
    });
  }
  const solved = ["batch/solve_all", "batch/solve_partial", "batch/solve_none"];
  return [
    ...charts,
    at("KL to the policy before each update", "actor/ppo_kl"),
    at("Entropy", "actor/entropy", { unit: "nats" }),
    at("Clip fraction", "actor/pg_clipfrac"),
    at("Response length", "response_length/mean", { unit: "tokens" }),
    at("Speed", "perf/throughput", { unit: "tokens/s" }),
    at("Gradient norm", "actor/grad_norm"),
    {
      title: "Tasks by outcome",
      metric: "batch/solve_{all,partial,none}",
      phase: "train",
      range: [0, 1],
      lines: solved.map((name) => ({ name, label: name.slice(12) })),
    },
    at("Learning rate", "actor/lr"),
  ];
}

function bySource(list) {
  const sources = new Map();
  for (const name of list) {
    const source = name.replace(/\/pass@\d+$/, "");
    sources.set(source, [...(sources.get(source) ?? []), name]);
  }
  return sources;
}

/** What asynchronous training adds, under its published names. */
function stalenessCharts() {
  const line = (name, label) => ({ name: `async/${name}`, label });
  return [
    {
      title: "Staleness",
      metric: "async/staleness_{mean,min,max}",
      unit: "versions",
      phase: "train",
      lines: [line("staleness_mean", "mean"), line("staleness_max", "max"), line("staleness_min", "min")],
    },
    at("Share of the step that the trainer waited", "async/trainer_idle_ratio", { range: [0, 1] }),
    {
      title: "Quota of the window",
      metric: "async/{quota_used,max_rollout_quota}",
      unit: "groups",
      phase: "train",
      lines: [line("quota_used", "used"), line("max_rollout_quota", "most")],
    },
    {
      title: "Groups on their way",
      metric: "async/{in_flight_groups,buffer_qsize,buffer_pending}",
      unit: "groups",
      phase: "train",
      lines: [
        line("in_flight_groups", "in flight"),
        line("buffer_qsize", "ready"),
        line("buffer_pending", "incomplete"),
      ],
    },
  ];
}

/** uPlot instances by their place on the page, redrawn when data, size, theme or smoothing change. */
const plots = [];

function chartCard(chart) {
  const drawn = shown().flatMap(({ run, i }) =>
    chart.lines
      .map((line, j) => ({ ...line, run, i, j, curve: curve(run, chart.phase, line.name) }))
      .filter((it) => it.curve),
  );
  if (drawn.length === 0) return undefined;
  const isSingle = drawn.length === 1;
  const [only] = drawn;
  const plot = h("div", {
    class: "plot",
    tabindex: "0",
    role: "img",
    "aria-label": describe(chart, drawn),
    onkeydown: (event) => moveCursor(event, plot),
    onblur: () => plot.uplot?.setCursor({ left: -10, top: -10 }),
  });
  const figure = h("figure", { class: "card chart" }, [
    h("figcaption", {}, [
      h("h3", {}, chart.title),
      h("code", {}, chart.metric),
      isSingle
        ? h("strong", {}, [
            number(only.curve.last),
            chart.unit ? h("span", { class: "unit" }, ` ${chart.unit}`) : "",
          ])
        : h("strong", { class: "unit" }, chart.unit ?? ""),
      chart.lines.length > 1 ? parts(chart, drawn) : undefined,
    ]),
    plot,
  ]);
  plots.push({ plot, figure, chart, drawn });
  return figure;
}

/** Within a chart of several metrics: one run colours them apart, several runs dash them apart. */
const lineColor = (it) => color(isMany() ? it.i : it.j);
const dashes = [undefined, [6, 4], [2, 3], [10, 4, 2, 4]];
const lineDash = (it) => (isMany() ? dashes[it.j % 4] : undefined);

function parts(chart, drawn) {
  return h(
    "div",
    { class: "parts" },
    chart.lines
      .filter((line) => drawn.some((it) => it.name === line.name))
      .map((line, j) => {
        const it = drawn.find((each) => each.name === line.name);
        const style = isMany() ? "color:var(--soft)" : `color:${lineColor(it)}`;
        const value = isMany() ? "" : ` ${number(it.curve.last)}`;
        return h("span", {}, [
          h("span", { class: isMany() ? `swatch ${["", "dashed", "dotted"][j % 3]}` : "swatch", style }),
          `${line.label}${value}`,
        ]);
      }),
  );
}

function describe(chart, drawn) {
  const each = drawn.map(({ run, label, curve: it }) => {
    const who = [isMany() ? run.name : "", label ?? ""].filter(Boolean).join(" ");
    return `${who ? `${who}: ` : ""}from ${number(it.first)} to ${number(it.last)}, between ${number(it.min)} and ${number(it.max)}`;
  });
  return `${chart.title}, ${each.join("; ")}. Left and right arrows read values.`;
}

/** The mean over a window around each point, smaller at the ends: the trend under the noise, without lag. */
function smooth(ys) {
  const reach = Math.round((ys.length * state.smoothing) / 2);
  const sums = [0];
  for (const y of ys) sums.push(sums[sums.length - 1] + y);
  return ys.map((_, i) => {
    const room = Math.max(Math.min(reach, i, ys.length - 1 - i), Math.ceil(reach / 3));
    const [from, to] = [Math.max(i - room, 0), Math.min(i + room + 1, ys.length)];
    return (sums[to] - sums[from]) / (to - from);
  });
}

const SMOOTHED_FROM = 25;

function drawPlot({ plot, figure, chart, drawn }) {
  const tables = [];
  const series = [{}];
  for (const it of drawn) {
    const { x, y } = it.curve;
    const isSmooth = !chart.isMarked && x.length > SMOOTHED_FROM && state.smoothing > 0;
    const stroke = resolved(`--run-${(isMany() ? it.i : it.j) % 8}`);
    const dash = lineDash(it);
    const isMarked = chart.isMarked || x.length === 1;
    const points = { show: isMarked, size: isMarked ? 7 : 5, fill: resolved("--card"), width: 2 };
    tables.push([x, y]);
    series.push({
      stroke: isSmooth ? `${stroke}52` : stroke,
      width: isSmooth ? 1 : 2,
      dash,
      points,
      spanGaps: true,
      it,
    });
    if (!isSmooth) continue;
    tables.push([x, smooth(y)]);
    series.push({ stroke, width: 2, dash, points: { show: false }, spanGaps: true });
  }
  if (drawn.length === 1) series[series.length - 1].fill = `${resolved(`--run-${drawn[0].i % 8}`)}12`;
  const joined = tables.length === 1 ? tables[0] : uPlot.join(tables);
  plot.uplot?.destroy();
  plot.uplot = new uPlot(options({ plot, figure, chart, series }), joined, plot);
}

const HEIGHT = 190;

function options({ plot, figure, chart, series }) {
  const axis = {
    stroke: resolved("--soft"),
    font: "12px system-ui, sans-serif",
    ticks: { show: false },
    grid: { stroke: resolved("--line"), width: 1 },
  };
  return {
    width: Math.max(plot.clientWidth, 120),
    height: HEIGHT,
    padding: [8, 16, 0, 0],
    legend: { show: false },
    scales: {
      x: { time: false, range: () => xRange(chart) },
      y: { range: (_, low, high) => yRange(chart, low, high) },
    },
    axes: [
      {
        ...axis,
        grid: { show: false },
        size: 26,
        space: 60,
        incrs: [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6],
        values: (_, ticks) => ticks.map((tick) => (tick >= 1e4 ? number(tick) : String(tick))),
      },
      {
        ...axis,
        size: 50,
        space: 34,
        values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))),
      },
    ],
    series,
    cursor: {
      y: false,
      drag: { x: false, y: false },
      focus: { prox: -1 },
      // A run that has no value at this step shows none, unless its nearest is a finger's width away.
      hover: { prox: 14 },
      sync: { key: chart.phase === "warmup" ? "warmup" : "step" },
      points: {
        size: 9,
        width: 2,
        stroke: (u, i) => solid(u.series[i].stroke(u, i)),
        fill: () => resolved("--card"),
        // The dot lies on the values, not on their trend.
        show: (u, i) =>
          u.series[i].it
            ? h("div", {
                class: "u-cursor-pt dot",
                style: `border-color:${solid(u.series[i].stroke(u, i))}`,
              })
            : false,
      },
    },
    hooks: { setCursor: [(u) => showTip(u, { plot, figure })] },
  };
}

const solid = (stroke) => (stroke.length === 9 ? stroke.slice(0, 7) : stroke);

/** Charts of one kind share their steps, also where some have no value. */
function xRange({ phase }) {
  const phases = phase === "warmup" ? ["warmup"] : ["train", "val"];
  const curves = shown().flatMap(({ run }) => phases.flatMap((each) => Object.values(run.curves[each])));
  const [low, high] = [
    Math.min(...curves.map(({ x }) => x[0])),
    Math.max(...curves.map(({ x }) => x[x.length - 1])),
  ];
  return low === high ? [low - 1, high + 1] : [low, high];
}

/** The ends that the quantity has, or room above and below; a flat curve lies in the middle. */
function yRange(chart, low, high) {
  if (chart.range) return [chart.range[0] - 0.02, chart.range[1] + 0.02];
  if (low === null || high === null) return [0, 1];
  const room = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * 0.08;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

/** Values at the cursor: beside the pointer, and told where the keyboard moved it. */
function showTip(u, { plot, figure }) {
  figure.querySelector(".tip")?.remove();
  const isHere = plot.matches(":hover") || document.activeElement === plot;
  const { idx, left } = u.cursor;
  if (!isHere || idx === null || idx === undefined || left < 0) return;
  const lines = u.series
    .map((each, i) => ({ it: each.it, value: u.data[i]?.[u.cursor.idxs?.[i] ?? -1] }))
    .filter(({ it, value }) => it && value !== null && value !== undefined);
  if (lines.length === 0) return;
  const step = `step ${trimmed(u.data[0][idx].toFixed(1))}`;
  const name = ({ it }) => [isMany() ? it.run.name : "", it.label ?? ""].filter(Boolean).join(" ");
  const rows = lines.map((line) =>
    h("div", {}, [
      lines.length > 1 ? h("span", { class: "swatch", style: `color:${lineColor(line.it)}` }) : undefined,
      lines.length > 1 ? h("span", { class: "name" }, name(line)) : step,
      h("b", {}, precise(line.value)),
    ]),
  );
  const tip = h("div", { class: "tip" }, [lines.length > 1 ? step : undefined, ...rows]);
  figure.append(tip);
  const x = plot.offsetLeft + u.bbox.left / devicePixelRatio + left;
  const most = figure.clientWidth - tip.offsetWidth - 6;
  const beside = x + 14 > most ? x - tip.offsetWidth - 14 : x + 14;
  tip.style.left = `${Math.min(Math.max(beside, 6), most)}px`;
  tip.style.top = `${plot.offsetTop + 10}px`;
  if (document.activeElement === plot)
    said.textContent = `${step}: ${lines.map((line) => `${name(line)} ${precise(line.value)}`.trim()).join(", ")}`;
}

const precise = (value) =>
  Math.abs(value) >= 1e-4 || value === 0 ? String(Number(value.toPrecision(5))) : value.toExponential(2);

function moveCursor(event, plot) {
  const u = plot.uplot;
  const last = u.data[0].length - 1;
  const now = u.cursor.idx ?? -1;
  const to = {
    ArrowRight: Math.min(now + 1, last),
    ArrowLeft: now < 0 ? last : Math.max(now - 1, 0),
    Home: 0,
    End: last,
  }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  u.setCursor({ left: u.valToPos(u.data[0][to], "x"), top: 20 });
}

function chartSection(title, note, charts) {
  const cards = charts.map(chartCard).filter(Boolean);
  return cards.length > 0 ? section(title, note, h("div", { class: "charts" }, cards)) : undefined;
}

// ---- groups, filters -------------------------------------------------------------------------------------------

function groupSection() {
  const runs = data.runs.map((run, i) => ({ run, i })).filter(({ run }) => run.groups.length > 0);
  if (runs.length === 0) return undefined;
  const chosen = runs.find(({ i }) => i === state.groupRun) ?? runs[0];
  const lines = chosen.run.groups;
  const place = state.groupStep < 0 || state.groupStep >= lines.length ? lines.length - 1 : state.groupStep;
  const body = h("div", {}, strips(lines[place]));
  const label = h("span", {}, `step ${lines[place].step}`);
  const picker = h("div", { class: "pick" }, [
    runs.length > 1
      ? h(
          "select",
          {
            "aria-label": "Run",
            onchange: (event) => {
              state.groupRun = Number(event.target.value);
              state.groupStep = -1;
              render();
            },
          },
          runs.map(({ run, i }) => h("option", { value: String(i), selected: i === chosen.i }, run.name)),
        )
      : undefined,
    label,
    lines.length > 1
      ? h("input", {
          type: "range",
          min: "0",
          max: String(lines.length - 1),
          value: String(place),
          "aria-label": "Step",
          oninput: (event) => {
            const to = Number(event.target.value);
            // The last step stays the last one while more come.
            state.groupStep = to === lines.length - 1 ? -1 : to;
            label.textContent = `step ${lines[to].step}`;
            body.replaceChildren(...strips(lines[to]));
          },
        })
      : undefined,
  ]);
  return section(
    "Groups",
    "One row a group, one cell an attempt: its reward; then how many attempts solved the task. Groups of equal rewards teach nothing.",
    h("div", { class: "card groups" }, [picker, body]),
  );
}

const MOST_STRIPS = 96;

function strips({ groups }) {
  const rewards = groups.flatMap((group) => group.rewards).filter((reward) => reward !== null);
  const [low, high] = [Math.min(...rewards, 0), Math.max(...rewards, 1)];
  const meanOf = (group) =>
    group.rewards.reduce((total, reward) => total + (reward ?? low), 0) / Math.max(group.rewards.length, 1);
  const sorted = [...groups].sort((a, b) => meanOf(b) - meanOf(a));
  const isEven = (group) => new Set(group.rewards).size === 1;
  const level = (reward) => Math.round((100 * (reward - low)) / Math.max(high - low, 1e-9));
  const cell = (reward) =>
    h("i", {
      title: reward === null ? "no reward" : precise(reward),
      style:
        reward === null ? "" : `background:color-mix(in oklab, var(--run-0) ${level(reward)}%, var(--card))`,
    });
  const isNamed = new Set(groups.map((group) => group.name)).size > 1;
  const rows = sorted.slice(0, MOST_STRIPS).map((group) =>
    h(
      "div",
      {
        class: isEven(group) ? "strip even" : "strip",
        role: "img",
        title: isNamed ? `${group.task}, ${group.name}` : group.task,
        "aria-label": `${group.task}${isNamed ? `, ${group.name}` : ""}: ${group.solved} of ${group.rewards.length} solved, rewards ${group.rewards.map((reward) => number(reward)).join(" ")}`,
      },
      [
        h("span", { class: "cells" }, group.rewards.map(cell)),
        h("span", { class: "sum" }, `${group.solved} of ${group.rewards.length}`),
      ],
    ),
  );
  const even = groups.filter(isEven).length;
  const more = sorted.length > MOST_STRIPS ? `, the first ${MOST_STRIPS} shown` : "";
  return [
    h("div", { class: "strips" }, rows),
    h("div", { class: "key" }, [
      h("span", {}, [h("i", { style: "background:var(--card)" }), `reward ${number(low)}`]),
      h("span", {}, [h("i", { style: "background:var(--run-0)" }), `reward ${number(high)}`]),
      h("span", {}, `${groups.length} groups${more}; ${groups.length - even} teach, ${even} are all alike`),
    ]),
  ];
}

/** What each filter dropped: `dropped` of `seen`, by the metrics of the loop. */
const FILTERS = [
  {
    title: "Compact filtering, names",
    what: "trajectories",
    dropped: (run) => difference(run, "groups/num_trajs_before_filter", "groups/num_trajs_after_filter"),
    seen: "groups/num_trajs_before_filter",
  },
  {
    title: "Too few trajectories in the group",
    what: "groups",
    name: "batch/groups_dropped_insufficient_trajs",
    seen: "batch/groups_before_filter",
  },
  {
    title: "Groups of equal rewards",
    what: "groups",
    name: "batch/groups_dropped_uniform",
    seen: "batch/groups_before_filter",
  },
  {
    title: "Rejected by the mode or a function of yours",
    what: "groups",
    dropped: rejected,
    seen: "batch/groups_before_filter",
  },
  {
    title: "Held back for a later step",
    what: "groups",
    name: "batch/groups_held",
    seen: "batch/groups_before_filter",
  },
  {
    title: "Too few trajectories (async)",
    what: "groups",
    name: "groups/dropped_min_trajs",
    seen: "groups/num_groups",
  },
  {
    title: "No advantage (async)",
    what: "groups",
    name: "groups/dropped_zero_adv",
    seen: "groups/num_groups",
  },
  { title: "Tokens that do not match", what: "trajectories", name: "batch/dropped_malformed_sequences" },
];
const REASONS = [
  "max_prompt_length_exceeded",
  "max_response_length_exceeded",
  "max_turns_exceeded",
  "timeout",
  "unknown",
  "error",
];

/** What no other filter explains. */
function rejected(run) {
  const names = ["before_filter", "after_filter", "dropped_insufficient_trajs", "dropped_uniform"];
  const [before, after, ...dropped] = names.map((name) => curve(run, "train", `batch/groups_${name}`));
  if (!before || !after) return undefined;
  const total = before.sum - after.sum - dropped.reduce((all, it) => all + (it?.sum ?? 0), 0);
  return total > 0 ? { sum: total } : undefined;
}

function difference(run, before, after) {
  const [a, b] = [curve(run, "train", before), curve(run, "train", after)];
  return a && b ? { sum: a.sum - b.sum, last: a.last - b.last } : undefined;
}

function filterSection() {
  const runs = shown();
  const rows = FILTERS.flatMap(({ title, what, name, seen, dropped }) => {
    const found = runs.map(({ run }) => (dropped ? dropped(run) : curve(run, "train", name)));
    if (found.every((it) => it === undefined)) return [];
    return [
      h("tr", {}, [
        h("th", { scope: "row" }, [title, h("span", { class: "soft" }, ` ${what}`)]),
        found.flatMap((it, k) => {
          const of = seen ? curve(runs[k].run, "train", seen)?.sum : undefined;
          const share = it && of ? `${number((100 * it.sum) / of)}%` : "–";
          return [
            h("td", { class: "number" }, it ? number(it.sum) : "–"),
            h("td", { class: "number soft" }, share),
          ];
        }),
      ]),
    ];
  });
  const ends = REASONS.flatMap((reason) => {
    const found = runs.map(
      ({ run }) =>
        curve(run, "train", `batch/termination_reason/${reason}`) ??
        curve(run, "train", `episode/termination_reason/${reason}`),
    );
    if (found.every((it) => !it || it.sum === 0)) return [];
    return [
      h("tr", {}, [
        h("th", { scope: "row" }, [
          "Ended by ",
          h("code", {}, reason),
          h("span", { class: "soft" }, " attempts"),
        ]),
        found.flatMap((it) => [
          h("td", {}, ""),
          h("td", { class: "number soft" }, it ? `${number((100 * it.sum) / it.count)}%` : "–"),
        ]),
      ]),
    ];
  });
  if (rows.length + ends.length === 0) return undefined;
  const heads = runs.flatMap(({ run, i }) => [
    h(
      "th",
      { class: "number", scope: "col" },
      isMany()
        ? [
            h("span", { class: "swatch", style: `color:${color(i)};margin-right:7px` }),
            `${run.name}: dropped`,
          ]
        : "dropped",
    ),
    h("th", { class: "number", scope: "col" }, "share"),
  ]);
  return section(
    "Filters",
    "What each filter took out over the whole run, and how attempts ended that did not end by themselves.",
    table(["", ...heads], [...rows, ...ends]),
  );
}

// ---- samples, all metrics, settings ----------------------------------------------------------------------------

function sampleSection() {
  if (isMany()) return undefined;
  const [{ samples }] = data.runs;
  if (samples.length === 0) return undefined;
  const [first, last] = [samples[0].step, samples[samples.length - 1].step];
  const after = new Map(samples.filter(({ step }) => step === last).map((sample) => [sample.task, sample]));
  const isPair = first !== last;
  const heads = isPair
    ? ["Prompt", `Before (step ${first})`, `After (step ${last})`]
    : ["Prompt", `Step ${first}`];
  const cell = (sample) => {
    if (!sample) return h("td", {}, "–");
    const reward = h(
      "span",
      { class: sample.is_correct ? "mark right" : "mark" },
      sample.reward === null ? "failed" : number(sample.reward),
    );
    return h("td", {}, [
      h("div", { class: "more" }, [h("span", { class: "mono" }, sample.response || " "), reward]),
    ]);
  };
  const rows = samples
    .filter(({ step }) => step === first)
    .map((before) =>
      h("tr", {}, [
        h("td", {}, [h("div", { class: "more mono" }, before.prompt)]),
        cell(before),
        isPair ? cell(after.get(before.task)) : undefined,
      ]),
    );
  return section(
    "What it says",
    "The same tasks at the first and at the last validation.",
    table(heads, rows, "samples"),
  );
}

function allMetrics() {
  const list = ["train", "val", "warmup"]
    .flatMap((phase) =>
      names(phase, /./)
        .filter((name) => name !== "reward")
        .map((name) => ({ phase, name })),
    )
    .sort((a, b) => (a.name < b.name ? -1 : 1));
  if (list.length === 0) return undefined;
  const charts = h("div", { class: "charts" });
  const fill = () => {
    forgetPlots(charts);
    const wanted = state.search.toLowerCase();
    const found = list.filter(({ name }) => name.toLowerCase().includes(wanted));
    charts.replaceChildren(
      ...found
        .map(({ phase, name }) =>
          chartCard({
            title: name.split("/").slice(-2).join(" "),
            metric: name,
            phase,
            lines: [{ name }],
            isMarked: phase === "val",
          }),
        )
        .filter(Boolean),
    );
    drawAll(charts);
  };
  const details = h(
    "details",
    {
      class: "card",
      open: state.isAllOpen,
      ontoggle: () => {
        state.isAllOpen = details.open;
        if (details.open) fill();
      },
    },
    [
      h("summary", {}, `All ${list.length} metrics`),
      h("input", {
        type: "search",
        placeholder: "Part of a name, for instance advantage",
        "aria-label": "Search metrics",
        value: state.search,
        oninput: (event) => {
          state.search = event.target.value;
          fill();
        },
      }),
      charts,
    ],
  );
  return details;
}

function settingsText() {
  const runs = data.runs.filter((run) => run.config !== "");
  if (runs.length === 0) return undefined;
  return runs.map((run) =>
    h(
      "details",
      {
        class: "card",
        open: !isMany() && state.isSettingsOpen,
        ontoggle: (event) => {
          state.isSettingsOpen = event.target.open;
        },
      },
      [
        h("summary", {}, isMany() ? `Settings of ${run.name}` : "Settings of this run"),
        h("pre", {}, run.config),
      ],
    ),
  );
}

// ---- the whole -------------------------------------------------------------------------------------------------

function forgetPlots(within) {
  for (let i = plots.length - 1; i >= 0; i--) {
    if (within && !within.contains(plots[i].figure)) continue;
    plots[i].plot.uplot?.destroy();
    plots.splice(i, 1);
  }
}

function drawAll(within) {
  for (const it of plots) if (it.figure.isConnected && (!within || within.contains(it.figure))) drawPlot(it);
}

function render() {
  const focused = plots.findIndex(({ plot }) => plot === document.activeElement);
  const cursor = focused >= 0 ? plots[focused].plot.uplot?.cursor.left : undefined;
  const isTyping = document.activeElement instanceof HTMLInputElement ? document.activeElement.type : "";
  forgetPlots();
  const isEmpty = data.runs.every((run) =>
    Object.values(run.curves).every((curves) => Object.keys(curves).length === 0),
  );
  const parts = [
    header(),
    legend(),
    isEmpty
      ? h(
          "div",
          { class: "card nothing" },
          data.live
            ? "Nothing was measured yet: this page draws the first step as soon as it is done."
            : "Nothing was measured.",
        )
      : undefined,
    isEmpty ? undefined : tiles(),
    finalFigures(),
    chartSection("Training", undefined, trainingCharts()),
    groupSection(),
    filterSection(),
    chartSection(
      "Staleness",
      "How many weight updates a group waited, and where it waited.",
      stalenessCharts(),
    ),
    chartSection("Warm-up", undefined, [at("Cross-entropy", "warmup/loss", { phase: "warmup" })]),
    sampleSection(),
    differingSettings(),
    section("More", undefined, allMetrics(), ...(settingsText() ?? [])),
  ];
  page.replaceChildren(...parts.filter(Boolean));
  drawAll();
  if (isTyping === "search") {
    const search = page.querySelector("input[type=search]");
    search?.focus();
    search?.setSelectionRange(state.search.length, state.search.length);
  } else if (focused >= 0) {
    plots[focused]?.plot.focus({ preventScroll: true });
    if (cursor !== undefined) plots[focused]?.plot.uplot?.setCursor({ left: cursor, top: 20 });
  }
}

/** Not while a person drags a slider or reads a value: it would jump under their hand. */
function isBusy() {
  return (
    page.querySelector("input[type=range]:active, .plot:hover .u-over") !== null &&
    Date.now() - lastRender < 5000
  );
}

let lastRender = 0;
async function refresh() {
  if (isBusy()) return void setTimeout(refresh, 1000);
  data = await (await fetch("data.json")).json();
  lastRender = Date.now();
  const top = scrollY;
  page.style.minHeight = `${page.offsetHeight}px`;
  render();
  page.style.minHeight = "";
  scrollTo(0, top);
}

function follow() {
  const events = new EventSource("events");
  events.onmessage = refresh;
  events.onerror = () => {
    state.isLost = true;
    render();
  };
  events.onopen = () => {
    if (!state.isLost) return;
    state.isLost = false;
    void refresh();
  };
}

root.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ({ matches }) => {
  root.dataset.theme = matches ? "dark" : "light";
  drawAll();
});
render();
let width = page.clientWidth;
new ResizeObserver(() => {
  if (page.clientWidth === width) return;
  width = page.clientWidth;
  drawAll();
}).observe(page);
if (data.live) follow();
