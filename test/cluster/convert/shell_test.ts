// biome-ignore-all lint/suspicious/noTemplateCurlyInString: shell expansions are what is tested
/** Launch scripts are read as bash runs them; what a run alone decides is refused with its line. */
import { describe, expect, test } from "vitest";
import { expandBraces } from "../../../src/cluster/convert/shell/braces.ts";
import { launchesOf, readShell } from "../../../src/cluster/convert/shell/read.ts";
import { render } from "../../../src/cluster/convert/shell/text.ts";
import { readSource } from "../../../src/cluster/convert/source/read.ts";
import { hasBash, runBash } from "../../fixtures/bash.ts";
import { randomScript } from "../../fixtures/random_script.ts";
import { compareWithBash } from "../../fixtures/same_as_bash.ts";

const ENV = { HOME: "/home/x", MODEL: "/m/q" };
const RUN = "python3 -m verl.trainer.main_ppo";

/** `set` is what bash hands to the run, after the program. */
const CONSTRUCTS: readonly [name: string, script: string, set: readonly string[]][] = [
  ["a variable of the environment", `${RUN} a.b=$HOME/x a.c="\${MODEL}"`, ["a.b=/home/x/x", "a.c=/m/q"]],
  [
    "continuation lines, comments and empty lines",
    `# head\n\n${RUN} a.b=1 \\\n  a.c=2 \\\n a.d=3 # end`,
    ["a.b=1", "a.c=2", "a.d=3"],
  ],
  [
    "quotes",
    `${RUN} a.b="x y" a.c='$Z "q"' a.d=p\\ q a.e=$'t\\tu' a.f="a\\"b\\$c"`,
    ["a.b=x y", 'a.c=$Z "q"', "a.d=p q", "a.e=t\tu", 'a.f=a"b$c'],
  ],
  [
    "an assigned variable",
    `N=8\nX="p $N"\nexport Y=$X/z\n${RUN} a.n=$N a.x="$X" a.y="$Y"`,
    ["a.n=8", "a.x=p 8", "a.y=p 8/z"],
  ],
  ["an unquoted variable is split at spaces", `X="a.b=1   a.c=2"\n${RUN} $X a.d=3`, ["a.b=1", "a.c=2", "a.d=3"]],
  [
    "defaults",
    `A=\nB=b\n${RUN} a.a=\${A:-1024} a.b=\${B:-x} a.c=\${C:-3} a.d=\${A-x} a.e=\${D-y}`,
    ["a.a=1024", "a.b=b", "a.c=3", "a.d=", "a.e=y"],
  ],
  [
    "defaults in defaults",
    `${RUN} a.b=\${X:-\${Y:-"\${HOME}/q"}} a.c="\${Z:-p \${Y:-1}}"`,
    ["a.b=/home/x/q", "a.c=p 1"],
  ],
  [
    "a default that is kept, and its opposite",
    `: \${X:=5}\nY=1\n${RUN} a.x=$X a.y=\${Y:+yes} a.z=n\${Z:+yes}`,
    ["a.x=5", "a.y=yes", "a.z=n"],
  ],
  [
    "sums",
    `A=$((1024 * 2 + 3))\nB=$(( (A + 1) / 2 % 100 ))\n((B += 2))\nlet C=B*2\n${RUN} a.a=$A a.b=$B a.c=$C a.d=$((2**10 > 1000 ? 7 : 8)) a.e=$((-7 / 2)) a.f=$((0x10 + 010))`,
    ["a.a=2051", "a.b=28", "a.c=56", "a.d=7", "a.e=-3", "a.f=24"],
  ],
  [
    "an array in one line and in many",
    `A=(a.b=1 "a.c=x y")\nB=(\n  a.d=4 # four\n  # none\n  'a.e=5'\n)\nB+=(a.f=6)\n${RUN} "\${A[@]}" "\${B[@]}"`,
    ["a.b=1", "a.c=x y", "a.d=4", "a.e=5", "a.f=6"],
  ],
  [
    "parts of arrays",
    `A=(p q r)\nA[4]=t\n${RUN} a.n=\${#A[@]} a.one=\${A[1]} a.all="\${A[*]}" a.some="\${A[*]:1:2}" a.keys="\${!A[*]}"`,
    ["a.n=4", "a.one=q", "a.all=p q r t", "a.some=q r", "a.keys=0 1 2 4"],
  ],
  ["a map", `declare -A M=([x]=1 [y]=2)\nM[z]=3\n${RUN} a.x=\${M[x]} a.z=\${M[z]}`, ["a.x=1", "a.z=3"]],
  ["an empty array is no word", `A=()\n${RUN} "\${A[@]}" a.b=1 "$@" $@`, ["a.b=1"]],
  [
    "parts of texts",
    `X=/a/b/model.bin\n${RUN} a.a=\${X##*/} a.b=\${X%/*} a.c=\${X%%.*} a.d=\${X#/} a.e=\${X:3:1} a.f=\${#X} a.g=\${X/b/c} a.h=\${X//\\//.} a.i=\${X: -3}`,
    [
      "a.a=model.bin",
      "a.b=/a/b",
      "a.c=/a/b/model",
      "a.d=a/b/model.bin",
      "a.e=b",
      "a.f=14",
      "a.g=/a/c/model.bin",
      "a.h=.a.b.model.bin",
      "a.i=bin",
    ],
  ],
  [
    "classes of characters",
    `X=a1b22\n[[ $X == [a-c]?[!0-9]* ]] && Y=1\ncase $X in [!a]*) Z=1 ;; *[2"]"]) Z=2 ;; esac\n${RUN} a.b=\${X//[0-9]/n} a.c=\${X%[0-9]} a.y=$Y a.z=$Z`,
    ["a.b=anbnn", "a.c=a1b2", "a.y=1", "a.z=2"],
  ],
  [
    "words of defaults, of which only unquoted parts are split",
    `X=\n${RUN} \${X:-'a.b=1 2' a.c=3} \${X:+a.d=4} a.e="\${X:-p q}"`,
    ["a.b=1 2", "a.c=3", "a.e=p q"],
  ],
  [
    "lists with gaps",
    `M=()\nM[2]=p\nM+=(q r)\nM[9]=s\n${RUN} a.n=\${#M[@]} a.s="\${M[*]:3}" a.k="\${!M[*]}"`,
    ["a.n=4", "a.s=q r s", "a.k=2 3 4 9"],
  ],
  [
    "what was unset stays unset behind a function and a command",
    `unset A\nf() { local A=1; }\nf\nA=2 true\n${RUN} a.b="x$A" a.c=\${A-none}`,
    ["a.b=x", "a.c=none"],
  ],
  ["a text that sets what it is added to", `X=\nX+="a\${X:=b}"\n${RUN} a.b=$X`, ["a.b=bab"]],
  ["empty quotes around an empty list", `E=\nM=()\n${RUN} "$E\${M[@]}" a.b=1`, ["a.b=1"]],
  ["letters", `X=aBc\n${RUN} a.a=\${X^} a.b=\${X^^} a.c=\${X,,}`, ["a.a=ABc", "a.b=ABC", "a.c=abc"]],
  ["a name in a variable", `N=X\nX=5\n${RUN} a.b=\${!N}`, ["a.b=5"]],
  [
    "if, elif and else",
    `A=megatron\nif [ "$A" = fsdp ]; then B=1; elif [[ $A == mega* ]]; then B=2; else B=3; fi\n${RUN} a.b=$B`,
    ["a.b=2"],
  ],
  [
    "tests",
    `X=4; E=\n[ $X -eq 4 ] && A=1\n[ -z "$E" -a "$X" -ge 5 ] || B=2\n[[ -n $X && ! ( $X < 3 ) ]] && C=3\ntest x != y && D=4\n((X > 3)) && F=5\n${RUN} a.b=$A$B$C$D$F`,
    ["a.b=12345"],
  ],
  [
    "case",
    `M=vllm\ncase $M in\n  hf|sglang) N=1 ;;\n  vl*) N=2 ;;&\n  "vllm") N=\${N}3 ;;\n  *) N=4 ;;\nesac\n${RUN} a.b=$N`,
    ["a.b=23"],
  ],
  ["for over words", `X=\nfor i in 1 2 {3..4}; do [ $i = 2 ] && continue; X+=$i; done\n${RUN} a.b=$X`, ["a.b=134"]],
  [
    "while and until",
    `i=0; L=; while [ $i -lt 5 ]; do i=$((i + 1)); [ $i -eq 3 ] && break; done\nuntil ((j >= 2)); do ((j++)); done\nfor ((k = 0; k < 3; k++)); do L="$L$k"; done\n${RUN} a.b=$i$j$L`,
    ["a.b=32012"],
  ],
  [
    "functions",
    `N=1\nset_n() { local M=$1; N=$((M * 2)); return 0; N=9; }\nfunction twice { echo "$(( $1 * 2 ))"; }\nset_n 4\n${RUN} a.n=$N a.m=\${M:-none} a.t=$(twice 21)`,
    ["a.n=8", "a.m=none", "a.t=42"],
  ],
  [
    "output of the shell's own commands",
    `X=$(echo "a  b")\nY=\`printf '%s-%d' p 3\`\nZ=$(basename /a/b.txt .txt)$(dirname /a/b)\n${RUN} a.x="$X" a.y=$Y a.z=$Z a.s="$(seq 1 3)"`,
    ["a.x=a  b", "a.y=p-3", "a.z=b/a", "a.s=1\n2\n3"],
  ],
  [
    "a here document",
    `X=$(cat <<EOF\np $HOME\nEOF\n)\nY=$(cat <<'EOF'\np $HOME\nEOF\n)\n${RUN} a.x="$X" a.y="$Y"`,
    ["a.x=p /home/x", "a.y=p $HOME"],
  ],
  ["a subshell keeps its variables to itself", `A=1\n(A=2)\nA=3 true\n{ B=4; }\n${RUN} a.b=$A$B`, ["a.b=14"]],
  ["a pipe, a file and the background", `set -x\n${RUN} a.b=1 2>&1 | tee log.txt`, ["a.b=1"]],
  ["variables for one command", `A=1 B=2 ${RUN} a.b=\${A:-0}`, ["a.b=0"]],
  [
    "lists in brackets",
    `${RUN} a.l=['console','wandb'] a.m='["x","y"]' a.n=[$HOME,"$HOME"]`,
    ["a.l=[console,wandb]", 'a.m=["x","y"]', "a.n=[/home/x,/home/x]"],
  ],
  ["braces", `${RUN} a.{b,c}=1 'a.d={p:1,q:2}' a.e={p:1}`, ["a.b=1", "a.c=1", "a.d={p:1,q:2}", "a.e={p:1}"]],
  [
    "a tilde only where bash expands it",
    `X=~/m\n${RUN} a.b=$X a.c=~/m a.d="~/m"`,
    ["a.b=/home/x/m", "a.c=~/m", "a.d=~/m"],
  ],
  ["added and removed settings", `${RUN} +a.b=1 ++a.c=2 ~a.d`, ["+a.b=1", "++a.c=2", "~a.d"]],
  [
    "an interpolation that is meant for the run",
    `${RUN} 'a.b=\${trainer.name}/x' a.c="\\\${data.seed}"`,
    ["a.b=${trainer.name}/x", "a.c=${data.seed}"],
  ],
  [
    "a change of prefix",
    `O="actor.p=1 actor.q=2"\n${RUN} $O \${O//actor/critic}`,
    ["actor.p=1", "actor.q=2", "critic.p=1", "critic.q=2"],
  ],
  ["a program inside others", `torchrun --nnodes=1 -m verl.trainer.main_ppo a.b=1`, ["a.b=1"]],
];

describe("a launch script", () => {
  for (const [name, script, set] of CONSTRUCTS) {
    const own = (words: readonly string[]) => words.slice(words.findIndex((word) => word.startsWith("verl.")) + 1);
    test(name, () => {
      const { launches } = launchesOf(script);
      expect(launches).toHaveLength(1);
      const words = launches[0]!.words.map(({ text }) => render(text, (it) => (ENV as Record<string, string>)[it]!));
      expect(own(words)).toEqual(set);
      const run = readShell(script);
      expect(run.problems).toEqual([]);
      expect(
        run.words.map(({ text }) =>
          text
            .replace("${oc.env:HOME}", "/home/x")
            .replace("${oc.env:HOME}", "/home/x")
            .replace("${oc.env:MODEL}", "/m/q"),
        ),
      ).toEqual(set);
    });
    test.skipIf(!hasBash)(`${name}: bash says the same`, () => {
      const calls = runBash(script, ENV).calls.filter((words) => words.some((word) => word.startsWith("verl.")));
      expect(calls.map(own)).toEqual([set]);
    });
  }

  test.skipIf(!hasBash)(
    "random scripts: the same words as bash, or refused",
    () => {
      const outcomes = Array.from({ length: 60 }, (_, i) => ({ i, ...compareWithBash(randomScript(i + 1)) }));
      expect(outcomes.filter(({ outcome }) => outcome === "wrong")).toEqual([]);
      expect(outcomes.filter(({ outcome }) => outcome === "same").length).toBeGreaterThan(40);
    },
    60_000,
  );

  test("the environment and the arguments are given", () => {
    const script = `${RUN} a.b=\${N:-8} a.c=$1 a.d=$# a.e=\${HOME} "\${@:2}"`;
    const { words, notes } = readShell(script, { env: new Map([["N", "4"]]), args: ["x", "a.f=2"] });
    expect(words.map(({ text }) => text)).toEqual(["a.b=4", "a.c=x", "a.d=2", "a.e=${oc.env:HOME}", "a.f=2"]);
    expect(notes.map(({ message }) => message).join("\n")).not.toContain("unset");
  });

  test("assumptions are reported once", () => {
    const script = `export WANDB_API_KEY=secret\nsource env.sh\nA=\${N:-8}\nB=\${M:-$A}\n${RUN} a.b=$A a.c=$B a.d=$MODEL $EXTRA`;
    const { words, notes } = readShell(script);
    expect(words.map(({ text }) => text)).toEqual(["a.b=8", "a.c=8", "a.d=${oc.env:MODEL}"]);
    const told = notes.map(({ message }) => message).join("\n");
    expect(told).toContain("treated as unset, so the script's defaults apply: M, N (--env NAME=VALUE sets one)");
    expect(told).toContain("treated as empty: EXTRA");
    expect(told).toContain("read from the environment where the run starts: MODEL");
    expect(told).toContain("not settings. Set them where the run starts: WANDB_API_KEY");
    expect(told).toContain("what `source env.sh` sets is not read");
    expect(told).not.toContain("secret");
  });

  const UNREAD: readonly [name: string, script: string, why: RegExp, line: number][] = [
    [
      "the output of a program",
      `X=run_$(date +%m%d)\n${RUN} a.b=1 a.name=$X`,
      /a\.name: the value depends on the output of `date \+%m%d` \(line 1\)\. Give it after the script: a\.name=VALUE/,
      2,
    ],
    [
      "a condition on the machine",
      `N=1\nif [ -f /x ]; then N=2; fi\n${RUN} a.n=$N`,
      /depends on the condition \(line 2\)/,
      3,
    ],
    [
      "a condition on the environment",
      `N=1\n[ "$MODE" = big ] && N=2\n${RUN} a.n=$N`,
      /depends on whether a command succeeds \(line 2\)/,
      3,
    ],
    [
      "a case on the environment",
      `case $MODE in\n a) N=1 ;;\n *) N=2 ;;\nesac\n${RUN} a.n=$N`,
      /depends on the condition \(line 2\)/,
      5,
    ],
    [
      "a loop of unknown length",
      `N=0\nwhile ! nvidia-smi; do\n N=$((N + 1))\ndone\n${RUN} a.n=$N`,
      /depends on the number of turns of a loop \(line 2\)/,
      5,
    ],
    [
      "a sum with the environment",
      `${RUN} a.n=$((GPUS_PER_NODE * N))\n`.replace("GPUS_PER_NODE", "$GPUS"),
      /depends on `\$\(\(\$GPUS \* N\)\)` \(line 1\)/,
      1,
    ],
    ["another file", `N=1\nsource env.sh\n${RUN} a.n=$N`, /depends on what `source env\.sh` sets \(line 2\)/, 3],
    [
      "the folder of the script",
      `D=$(cd "$(dirname "$0")" && pwd)\n${RUN} a.b=1 a.d=$D/x`,
      /a\.d: the value depends on/,
      2,
    ],
    ["a variable that is read", `read -r N\n${RUN} a.n=$N`, /depends on what `read` reads \(line 1\)/, 2],
    [
      "an element of a list that an unknown condition changes",
      `M=(1 2)\n[ -f /x ] && M=(3)\n${RUN} a.n=\${M[1]}`,
      /depends on whether a command succeeds \(line 2\)/,
      3,
    ],
    [
      "how many arguments an unknown condition sets",
      `[ -f /x ] && set -- p q\n${RUN} a.n=$#`,
      /depends on the number of arguments \(line 2\)/,
      2,
    ],
    [
      "part of a list that an unknown condition changes",
      `M=(1 2)\n[ -f /x ] && M=(3)\n${RUN} a.n="\${M[*]:1}"`,
      /depends on `\$\{M\[\*\]:1\}` \(line 3\)/,
      3,
    ],
  ];
  for (const [name, script, why, line] of UNREAD) {
    test(`not known: ${name}`, () => {
      const { problems } = readSource([{ name: "run.sh", text: script }], "verl");
      expect(problems).toHaveLength(1);
      expect(problems[0]!.message).toMatch(why);
      expect([problems[0]!.file, problems[0]!.line]).toEqual(["run.sh", line]);
      const path = problems[0]!.path as string;
      const given = readSource(
        [
          { name: "run.sh", text: script },
          { name: "x.args", text: `${path}=7` },
        ],
        "verl",
      );
      expect([given.problems, given.values.get(path)?.value]).toEqual([[], 7]);
    });
  }

  const REFUSED: readonly [name: string, script: string, why: RegExp, line: number][] = [
    ["two runs", `${RUN} a.b=1\n${RUN} a.b=2`, /more than one run: lines 1 and 2/, 2],
    [
      "two runs, one of them in an unknown branch",
      `if [ -f x ]; then\n${RUN} a.b=1\nelse\n${RUN} a.b=2\nfi`,
      /more than one run: lines 2 and 4/,
      4,
    ],
    ["no run", "echo a.b=1", /starts no run with settings/, 1],
    [
      "arguments that are not given",
      `if [ "$#" -lt 1 ]; then\n  exit 1\nfi\n${RUN} a.b=$1`,
      /ends before it starts a run; give its arguments with --arg/,
      2,
    ],
    ["a broken continuation", `${RUN} \\\n  a.b=1 \\ # one\n  a.c=2`, /so "a\.c=2" is a separate command/, 3],
    ["text that bash cannot parse", `if true; then\n${RUN} a.b=1`, /bash cannot parse it/, 2],
    [
      "an interpolation without quotes",
      `${RUN} a.b=\${trainer.name}`,
      /\$\{trainer\.name\} is not a known expansion/,
      1,
    ],
    ["division by zero", `X=0\n${RUN} a.b=$((8 / X))`, /divides by 0/, 2],
    ["an endless loop", `while true; do X=1; done\n${RUN} a.b=1`, /more than 100000 commands/, 1],
    ["an endless recursion", `f() { f; }\nf\n${RUN} a.b=1`, /call each other endlessly/, 1],
    [
      "an unset variable under set -u",
      `set -u\nunset X\n${RUN} a.b=$X`,
      /X is not set, which ends a script with `set -u`/,
      3,
    ],
    [
      "a loop that an unknown condition leaves",
      `for i in 1 2; do\n[ -f x ] && break\nN=$i\ndone\n${RUN} a.b=$N`,
      /the rest of the script depends on it/,
      2,
    ],
  ];
  for (const [name, script, why, line] of REFUSED) {
    test(`refused: ${name}`, () => {
      const { problems, words } = readShell(script);
      expect(words).toEqual([]);
      expect(problems[0]!.message).toMatch(why);
      expect(problems[0]!.line).toBe(line);
    });
  }

  test("a branch that ends the script is no run", () => {
    const script = `if [ ! -f data ]; then\n  N=2\n  exit 1\nfi\nN=\${N:-1}\n${RUN} a.b=$N`;
    expect(readShell(script).words.map(({ text }) => text)).toEqual(["a.b=1"]);
  });

  test("the lines of settings are those of the text that sets them", () => {
    const script = `A=(\n  a.b=1\n  a.c=2\n)\n${RUN} \\\n  "\${A[@]}" \\\n  a.d=3`;
    expect(readShell(script).words.map(({ text, line }) => [text, line])).toEqual([
      ["a.b=1", 2],
      ["a.c=2", 3],
      ["a.d=3", 7],
    ]);
  });
});

describe("what a script starts", () => {
  const read = (script: string, ...before: string[]) =>
    readSource(
      [...before.map((name) => ({ name, text: "data:\n  seed: 1\n" })), { name: "run.sh", text: script }],
      "verl",
    );

  test("another program than the trainer is refused by its name", () => {
    const { problems, values } = read("torchrun -m verl.trainer.fsdp_sft_trainer data.train_files=x");
    expect(problems[0]!.message).toContain("verl.trainer.fsdp_sft_trainer reads: it is not RL training");
    expect(values.size).toBe(0);
  });

  test("a configuration file below the overrides must be given, and lies below them", () => {
    const script = `${RUN} --config-path=conf --config-name='my_grpo' data.train_batch_size=8`;
    expect(read(script).problems[0]!.message).toContain("Give both files: my_grpo.yaml, then the script.");
    const { problems, values } = read(script, "conf/my_grpo.yaml");
    expect([problems, values.get("data.seed")?.value]).toEqual([[], 1]);
    expect(read(`${RUN} --config-name=ppo_trainer data.seed=2`).problems).toEqual([]);
  });

  test("Megatron's configuration is the engine's name", () => {
    for (const how of [
      "--config-name=ppo_megatron_trainer.yaml",
      "--config-name ppo_megatron_trainer",
      "model_engine=megatron",
    ]) {
      expect(read(`${RUN} ${how} data.seed=2`).values.get("model_engine")?.value).toBe("megatron");
    }
  });

  test("the defaults list of a file below counts", () => {
    const below = (defaults: string) =>
      readSource(
        [{ name: "my.yaml", text: `defaults: ${defaults}\nhydra: {searchpath: [x]}\ndata: {seed: 1}\n` }],
        "verl",
      );
    expect([...below("[ppo_trainer, _self_]").values.keys()]).toEqual(["data.seed"]);
    expect(below("[ppo_megatron_trainer, _self_]").values.get("model_engine")?.value).toBe("megatron");
    const { notes } = below("[my_base, _self_]");
    expect(notes?.[0]?.message).toContain("defaults: my_base: their settings are not read");
  });

  test("a word that is no setting is refused", () => {
    expect(read(`${RUN} data.seed=2 seed`).problems[0]!.message).toBe(
      'Cannot read "seed": it is not a setting. Write key=value.',
    );
  });

  test("shell variables are no settings, also where they look like one", () => {
    const { values } = read(`actor.lr=1e-6\nlr=1\n${RUN} data.seed=$lr`.replace("actor.lr=1e-6\n", ""));
    expect([...values.keys()]).toEqual(["data.seed"]);
  });
});

test.each([
  ["a{b,c}d", ["abd", "acd"]],
  ["{1..3}{x,y}", ["1x", "1y", "2x", "2y", "3x", "3y"]],
  ["{03..01}", ["03", "02", "01"]],
  ["{a:1}", ["{a:1}"]],
  ["'{a,b}'", ["'{a,b}'"]],
  ["${x,y}{p,q}", ["${x,y}p", "${x,y}q"]],
  ["a{b,{c,d}}", ["ab", "ac", "ad"]],
])("braces of %s", (word, expanded) => expect(expandBraces(word)).toEqual(expanded));
