import { expect, test } from "vitest";
import { estimateAdvantages, estimateAdvantagesOn } from "../../src/loop/estimate.ts";
import { overDevices } from "../fixtures/devices.ts";
import { expectClose } from "../fixtures/numbers.ts";

const REWARDS = Float32Array.of(1, 0.5, 0, 1, 0, 0.25, 1, 1, 1, 0, 0.75);
/** Interleaved, uneven, one alone. */
const GROUPS = Uint32Array.of(0, 1, 0, 1, 0, 1, 2, 2, 2, 3, 0);
const NAMES = ["grpo", "rloo", "reinforce", "reinforce_plus_plus_baseline", "prpo", "opo", "gpg"];

overDevices("advantages where the loop takes them", (device) => {
  for (const name of NAMES)
    for (const norm_adv_by_std_in_grpo of name === "grpo" ? [true, false] : [true])
      test(`${name}${norm_adv_by_std_in_grpo ? "" : " without the deviation"}`, async () => {
        const options = { name, norm_adv_by_std_in_grpo };
        const before = device.memory.live;
        const got = await estimateAdvantagesOn(device)(REWARDS, GROUPS, options);
        const expected = await estimateAdvantages(REWARDS, GROUPS, options);
        expectClose(got, expected, { relative: 2e-5, absolute: 2e-6 });
        expect(device.memory.live).toBe(before);
      });

  test("none of none", async () => {
    const none = await estimateAdvantagesOn(device)(new Float32Array(0), new Uint32Array(0), {
      name: "grpo",
      norm_adv_by_std_in_grpo: true,
    });
    expect(none).toHaveLength(0);
  });
});
