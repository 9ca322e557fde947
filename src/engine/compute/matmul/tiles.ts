/** Tiles by which a GPU multiplies large matrices: measured once per adapter and driver, or set. */
import { ConfigError } from "../../../leaves/errors.ts";
import { nodeModule } from "../../../leaves/node_module.ts";
import type { Buffer, Device, DeviceInfo, TileFamily } from "../device.ts";
import { MATMUL_KERNELS, MODE } from "./kernels.ts";
import { checkMatrices } from "./matrix_check.ts";
import { inputsOf } from "./subgroup_matrix.ts";

/**
 * Values of `device.products`. `subgroup_matrix` multiplies 128 rows and more on the GPU's matrix units, in f16 with
 * f32 sums or where it has such units in f32, and fewer by `tiled_large`: rows do not have the same bits among few rows
 * as among many.
 */
export type ProductChoice = "auto" | TileFamily | "subgroup_matrix";

/** FLOP/s by tiles. */
export type TileRates = Readonly<Record<TileFamily, number>>;

/** Store of measurements between processes, by adapter and driver. */
export interface TileStore {
  read(): Readonly<Record<string, TileRates>>;
  write(rates: Readonly<Record<string, TileRates>>): void;
}

export interface TileOptions {
  readonly measure?: (device: Device) => Promise<TileRates>;
  /** Default: a file in the user's cache; none in a page. */
  readonly store?: TileStore | undefined;
}

/**
 * The tiles for a device; nothing on a software GPU and on `cpu`, which have kernels of their own. Bits of both tiles are the same,
 * so that a measurement decides speed alone; matrix units are used where they are set, and after a check.
 * @throws ConfigError for a choice that the device cannot follow, UnsupportedError for matrix units that multiply wrongly
 */
export async function chooseTiles(
  device: Device,
  choice: ProductChoice = "auto",
  { measure = measureTiles, store = fileStore() }: TileOptions = {},
): Promise<Pick<DeviceInfo, "tile" | "tileSource" | "subgroupMatrix">> {
  if (device.info.family !== "tiled") {
    if (choice === "auto") return {};
    throw new ConfigError(
      `Cannot multiply by the kernels ${choice}: they are for GPUs, and the device is ${device.info.description}. Leave device.products at auto.`,
      { path: "device.products" },
    );
  }
  if (choice === "subgroup_matrix") return chooseMatrices(device);
  if (choice !== "auto") return { tile: choice, tileSource: "set by device.products" };
  if (device.memory.budget < MEASURED_BYTES) return { tile: "tiled_large", tileSource: "too little memory to measure" };
  const stored = store?.read() ?? {};
  const key = keyOf(device.info);
  const rates = stored[key] ?? (await measure(device));
  if (!stored[key]) store?.write({ ...stored, [key]: rates });
  return { tile: rates.tiled > rates.tiled_large ? "tiled" : "tiled_large", tileSource: describe(rates) };
}

async function chooseMatrices(device: Device): Promise<Pick<DeviceInfo, "tile" | "tileSource" | "subgroupMatrix">> {
  const difference = await checkMatrices(device);
  const inputs = inputsOf(device);
  return {
    tile: "tiled_large",
    tileSource: `set by device.products: 128 rows and more in ${inputs} on matrix units, ${difference.toPrecision(2)} from the f32 kernels`,
    subgroupMatrix: { isUsed: true, inputs },
  };
}

function keyOf({ vendor, architecture, description }: DeviceInfo): string {
  return [vendor, architecture, description].join("|");
}

function describe(rates: TileRates): string {
  const written = (tile: TileFamily) => `${tile} ${(rates[tile] / 1e9).toFixed(0)} GFLOP/s`;
  return `measured: ${written("tiled_large")}, ${written("tiled")}`;
}

const SIZE = 1024;
const MEASURED_BYTES = 3 * SIZE ** 2 * 4;
/** Long enough that the call itself counts for little. */
const LEAST_SECONDS = 0.005;
const MOST_PRODUCTS = 64;

/** Takes about a tenth of a second, and the time to compile two kernels. @param size of square matrices */
export async function measureTiles(device: Device, size: number = SIZE): Promise<TileRates> {
  const [a, b, c] = ["a", "b", "c"].map((name) => device.alloc(size * size * 4, `measured ${name}`));
  for (const buffer of [a!, b!]) device.clear(buffer);
  const seconds = async (tile: TileFamily, products: number) => {
    for (let i = 0; i < products; i++)
      dispatchSquare(device, tile, { buffers: { a: a!, b: b!, addend: b!, c: c! }, size });
    const start = performance.now();
    await device.submit();
    return (performance.now() - start) / 1000;
  };
  try {
    const tiled = await rateOf((products) => seconds("tiled", products), 2 * size ** 3);
    return { tiled, tiled_large: await rateOf((products) => seconds("tiled_large", products), 2 * size ** 3) };
  } finally {
    device.release(a!, b!, c!);
  }
}

async function rateOf(seconds: (products: number) => Promise<number>, flop: number): Promise<number> {
  await seconds(1);
  let products = 1;
  while (products < MOST_PRODUCTS && (await seconds(products)) < LEAST_SECONDS) products *= 4;
  const least = Math.min(await seconds(products), await seconds(products));
  return (products * flop) / least;
}

interface Square {
  readonly buffers: Readonly<Record<"a" | "b" | "addend" | "c", Buffer>>;
  readonly size: number;
}

function dispatchSquare(device: Device, tile: TileFamily, { buffers, size }: Square): void {
  const strides = { a_row: size, a_k: 1, b_k: size, b_column: 1, c_row: size };
  device.dispatch(MATMUL_KERNELS[tile], {
    buffers,
    params: {
      m: size,
      n: size,
      k: size,
      a_offset: 0,
      b_offset: 0,
      c_offset: 0,
      ...strides,
      alpha: 1,
      addend_offset: 0,
      addend_row: size,
      mode: MODE.write,
    },
  });
}

/** Changes with the kernels, so that they are measured again. */
const FILE = "products-1.json";

/** Undefined in a page. */
function fileStore(): TileStore | undefined {
  if (!isOnMachine()) return undefined;
  const [fs, os, { join }] = [nodeModule("node:fs"), nodeModule("node:os"), nodeModule("node:path")];
  const folder = join(os.homedir(), ".cache", "grpu");
  return jsonStore(join(folder, FILE), {
    read: (path) => fs.readFileSync(path, "utf8"),
    write(path, text) {
      fs.mkdirSync(folder, { recursive: true });
      // Replaced as a whole, because other processes read it.
      const temporary = `${path}.${Math.random().toString(36).slice(2)}`;
      fs.writeFileSync(temporary, text);
      fs.renameSync(temporary, path);
    },
  });
}

function isOnMachine(): boolean {
  try {
    return nodeModule("node:os").homedir() !== "";
  } catch {
    return false;
  }
}

/** A file of rates by adapter. One that cannot be read counts as empty, one that cannot be written costs a measurement each time. */
export function jsonStore(
  path: string,
  files: { read(path: string): string; write(path: string, text: string): void },
): TileStore {
  return {
    read() {
      try {
        return ratesIn(JSON.parse(files.read(path)));
      } catch {
        return {};
      }
    },
    write(rates) {
      try {
        files.write(path, `${JSON.stringify(rates, null, 2)}\n`);
      } catch {
        // A read-only home.
      }
    },
  };
}

function ratesIn(parsed: unknown): Record<string, TileRates> {
  const isRate = (value: unknown) => typeof value === "number" && value > 0;
  const entries = Object.entries((parsed ?? {}) as Record<string, Partial<TileRates> | null>);
  return Object.fromEntries(
    entries.filter(([, rates]) => isRate(rates?.tiled) && isRate(rates?.tiled_large)),
  ) as Record<string, TileRates>;
}
