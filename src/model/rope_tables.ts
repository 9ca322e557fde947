/** Tables of cos and sin by position, one for each kind of rotary positions that a model has. */
import type { Buffer, Device } from "../compute/device.ts";
import { type ModelConfig, ropeOf } from "./files/config.ts";
import { type Rope, ropeAttentionFactor, ropeFrequencies } from "./files/rope.ts";
import { ropeTable } from "./kernels/rope.ts";

/** Positions of the first tables. */
const FIRST_POSITIONS = 4096;

/**
 * Tables are as long as the sequences so far need, in powers of two: for 131,072 positions and heads of 256 one would take
 * 134 MB, and seconds to build, before a run of a thousand tokens begins. Values do not depend on the length.
 */
export class RopeTables {
  private readonly device: Device;
  private readonly headDim: number;
  private readonly contextLength: number;
  /** Kind of each layer, as JSON. */
  private readonly kinds: readonly string[];
  /** Tables by kind. */
  private tables = new Map<string, Buffer>();
  private positions = 0;

  /** @param config its `contextLength` is the longest sequence. */
  constructor(device: Device, config: ModelConfig) {
    this.device = device;
    this.headDim = config.headDim;
    this.contextLength = config.contextLength;
    const { ropeTheta, ropeScaling } = config;
    this.kinds = Array.from({ length: config.layers }, (_, layer) =>
      JSON.stringify(ropeOf(config, layer) ?? { ropeTheta, ropeScaling }),
    );
    this.reserve(FIRST_POSITIONS);
  }

  /**
   * Makes the tables cover sequences of so many tokens; positions beyond the context are not covered. Not part of a pass,
   * because a pass that runs out of memory forgets what it has recorded.
   */
  reserve(tokens: number): void {
    const wanted = Math.min(tokens, this.contextLength);
    if (wanted <= this.positions) return;
    const positions = Math.min(2 ** Math.ceil(Math.log2(wanted)), this.contextLength);
    const next = this.build(positions);
    this.release();
    this.tables = next;
    this.positions = positions;
  }

  /**
   * cos and sin of a layer by position, [reserved, D]. A layer without rotary positions has a table too, for kernels that must
   * bind one.
   */
  table(layer: number): Buffer {
    return this.tables.get(this.kinds[layer]!)!;
  }

  private build(positions: number): Map<string, Buffer> {
    const tables = new Map<string, Buffer>();
    try {
      for (const kind of new Set(this.kinds)) tables.set(kind, this.upload(JSON.parse(kind), positions));
      return tables;
    } catch (error) {
      this.device.release(...tables.values());
      throw error;
    }
  }

  private upload(rope: Rope, positions: number): Buffer {
    const frequencies = ropeFrequencies({ ...rope, headDim: this.headDim });
    return this.device.upload(ropeTable(positions, frequencies, ropeAttentionFactor(rope)), "rope angles");
  }

  release(): void {
    this.device.release(...this.tables.values());
    this.tables = new Map();
    this.positions = 0;
  }
}
