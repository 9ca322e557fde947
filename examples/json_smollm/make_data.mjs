/**
 * Writes the rows of this example: `node examples/json_smollm/make_data.mjs`. The seed is fixed, so that it writes the same files each time.
 *
 * A text introduces a person, and often a second one who does not count; the answer has the first one's name, age and city. Most ages are written
 * in words. Each prompt shows one example before its text. Names and cities of the held-out rows do not occur in the training rows.
 */
import { writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const TRAIN = {
  names: ["Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Julia", "Kevin", "Laura", "Mark"],
  cities: ["Paris", "London", "Boston", "Berlin", "Madrid", "Oslo", "Dublin", "Chicago", "Vienna", "Lisbon"],
};
const HELD_OUT = {
  names: ["Alice", "Peter", "Maria", "Simon", "Nora", "Oscar", "Helen", "Paul"],
  cities: ["Prague", "Dallas", "Milan", "Athens", "Seattle", "Geneva"],
};
const EXAMPLE = ["Eva from Rome turned forty-one.", '{"name":"Eva","age":41,"city":"Rome"}'];
const ONES = ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
const TENS = { 2: "twenty", 3: "thirty", 4: "forty", 5: "fifty", 6: "sixty", 7: "seventy" };

/** Mulberry32: numbers in [0, 1) that depend on the seed alone. */
function randomOf(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

const words = (age) => [TENS[Math.floor(age / 10)], ONES[age % 10]].filter((word) => word).join("-");

function rowOf(lists, random) {
  const below = (n) => Math.floor(random() * n);
  const drawn = (items) => {
    const left = [...items];
    return Array.from({ length: 2 }, () => left.splice(below(left.length), 1)[0]);
  };
  const [name, other] = drawn(lists.names);
  const [city, otherCity] = drawn(lists.cities);
  const [age, otherAge] = [21 + below(59), 21 + below(59)];
  const years = random() < 0.7 ? words(age) : String(age);
  const distraction = ["", ` ${other} is ${otherAge}.`, ` ${other} lives in ${otherCity}.`][below(3)];
  const text = [
    `${name} is ${years} and lives in ${city}.${distraction}`,
    `In ${city} I met ${name}.${distraction} ${name} is ${years}.`,
    `${name} from ${city} turned ${years}.${distraction}`,
  ][below(3)];
  return { prompt: promptOf(text), answer: JSON.stringify({ name, age, city }), data_source: "people" };
}

function promptOf(text) {
  const [shown, reply] = EXAMPLE;
  return [
    { role: "system", content: "JSON" },
    { role: "user", content: shown },
    { role: "assistant", content: reply },
    { role: "user", content: text },
  ];
}

function rowsOf(lists, { count, seed }) {
  const random = randomOf(seed);
  const rows = new Map();
  while (rows.size < count) {
    const row = rowOf(lists, random);
    rows.set(JSON.stringify(row.prompt), row);
  }
  return [...rows.values()];
}

const write = (file, rows) =>
  writeFileSync(fileURLToPath(new URL(file, import.meta.url)), rows.map((row) => `${JSON.stringify(row)}\n`).join(""));

write("people_train.jsonl", rowsOf(TRAIN, { count: 360, seed: 1 }));
write("people_val.jsonl", rowsOf(HELD_OUT, { count: 64, seed: 2 }));
