/** The kernels of products beside their shaders, and their workgroups, counted by hand: of work that fills the last one in part. */
import { expect, test } from "vitest";
import type { Grid } from "../../../src/engine/compute/kernel.ts";
import * as blocks from "../../../src/engine/compute/matmul/blocks.ts";
import { MATMUL_KERNELS, PACKED_KERNELS } from "../../../src/engine/compute/matmul/kernels.ts";
import { fold } from "../../../src/engine/compute/matmul/split.ts";
import * as subgroupMatrix from "../../../src/engine/compute/matmul/subgroup_matrix.ts";
import { unpackMatrix } from "../../../src/engine/compute/matmul/unpack.ts";
import { expectContract, kernelsOf } from "../../fixtures/kernel_contract.ts";

test.each(kernelsOf({ MATMUL_KERNELS, PACKED_KERNELS, blocks, fold, subgroupMatrix, unpack: unpackMatrix }))(
  "$name is what its shader declares",
  expectContract,
);

interface Sized {
  readonly name: string;
  readonly constants?: Readonly<Record<string, number>> | undefined;
  grid(params: never, constants: Readonly<Record<string, number>>): Grid;
}

test.each<[Sized, Record<string, number>, number[], Record<string, number>?]>([
  // Tiles of C.
  [MATMUL_KERNELS.subgroup, { m: 33, n: 65 }, [3, 2]],
  [MATMUL_KERNELS.subgroup, { m: 33, n: 65 }, [3, 5], { ROWS: 8 }],
  [MATMUL_KERNELS.wide, { m: 33, n: 65 }, [2, 2]],
  [MATMUL_KERNELS.columns, { m: 33, n: 65 }, [3, 2]],
  [MATMUL_KERNELS.few, { m: 8, n: 65 }, [3, 1]],
  [MATMUL_KERNELS.rows, { m: 33, n: 65 }, [2, 5]],
  [MATMUL_KERNELS.tiled, { m: 65, n: 65 }, [2, 2]],
  [MATMUL_KERNELS.tiled_large, { m: 129, n: 65 }, [2, 2]],
  [MATMUL_KERNELS.tiled_large, { m: 129, n: 65 }, [2, 3], { ROWS: 64 }],
  [MATMUL_KERNELS.tiled_large, { m: 129, n: 65 }, [2, 2, 3], { PARTS: 3 }],
  [fold, { rows: 65, width: 8 }, [3, 1, 1]],
  [MATMUL_KERNELS.tiled_narrow, { m: 17, n: 65 }, [3, 2]],
  [MATMUL_KERNELS.tiled_few, { m: 8, n: 65 }, [5, 1]],
  [MATMUL_KERNELS.tiled_few, { m: 2, n: 65 }, [9, 2], { COLUMNS: 8, ROWS: 1 }],
  [MATMUL_KERNELS.any, { m: 9, n: 65 }, [9, 3]],
  [MATMUL_KERNELS.any, { m: 262_144, n: 3 }, [1, 32_768, 2]],
  [PACKED_KERNELS.tiled, { m: 65, n: 65 }, [2, 2]],
  [subgroupMatrix.subgroupMatrix, { m: 129, n: 257 }, [3, 2]],
  [subgroupMatrix.subgroupMatrixPacked, { m: 128, n: 128 }, [1, 1]],
  [subgroupMatrix.subgroupMatrixFloats, { m: 128, n: 129 }, [2, 1]],
  // Runs of 256 in blocks of 16 rows.
  [blocks.magnitudes, { rows: 17, k: 257 }, [2, 2]],
  [blocks.magnitudesPacked, { rows: 16 * 65_536, k: 1 }, [1, 32_768, 2]],
  // A thread for two elements of what is filled up to 256 x 32.
  [blocks.halves, { m: 129, k: 17 }, [64]],
  [blocks.blocks, { m: 128, k: 16 }, [16]],
  // A thread for 4 x 4 elements.
  [unpackMatrix, { rows: 33, columns: 29 }, [2]],
])("$0.name of $1 has $2 workgroups", ({ grid, constants = {} }, params, expected, changed) => {
  const [x, y = 1, z = 1] = grid(params as never, { ...constants, ...changed });
  expect([x, y, z]).toEqual([...expected, 1, 1].slice(0, 3));
});

test("the reference of unpacking writes its elements and no other, exactly", () => {
  const out = new Float32Array(8).fill(9);
  const words = Uint32Array.of(0x4000_3f80, 0x4080_4040);
  const params = { rows: 1, columns: 3, offset: 1, stride: 3, out_row: 3, out_column: 1 };
  unpackMatrix.reference({ words, scales: new Float32Array(0), out }, params, { FORMAT: 1 });
  expect([...out]).toEqual([2, 3, 4, 9, 9, 9, 9, 9]);
  expect(unpackMatrix.tolerance).toEqual({ relative: 0, absolute: 0 });
});
