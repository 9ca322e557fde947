/** Tables of cos and sin by position, one for each kind of rotary positions that a model has. */
import type { Buffer, Device } from "../compute/device.ts";
import { ropeTable } from "./kernels/rope.ts";
import { type Rope, ropeAttentionFactor, ropeFrequencies } from "./rope.ts";

/** Positions of the first tables. */
const FIRST_POSITIONS = 4096;

/** A block's rotary positions and the width that they turn. */
export interface Rotated {
  readonly rope?: Rope | undefined;
  readonly headDim: number;
}

/**
 * Tables are as long as the sequences so far need, in powers of two: for 131,072 positions and heads of 256 one would take
 * 134 MB, and seconds to build, before a run of a thousand tokens begins. Values do not depend on the length.
 */
export class RopeTables {
  private readonly device: Device;
  private readonly contextLength: number;
  /** Kinds of all blocks, each once. */
  private readonly kinds: readonly string[];
  /** Tables by kind. */
  private tables = new Map<string, Buffer>();
  private positions = 0;

  /** @param options.contextLength the longest sequence */
  constructor(device: Device, { blocks, contextLength }: { blocks: readonly Rotated[]; contextLength: number }) {
    this.device = device;
    this.contextLength = contextLength;
    const rotated = blocks.filter(({ rope }) => rope !== undefined);
    this.kinds = [...new Set((rotated.length > 0 ? rotated : blocks).map(kindOf))];
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
   * cos and sin of a block by position, [reserved, D]. A block without rotary positions has the table of another, for kernels that
   * must bind one.
   */
  table(block: Rotated): Buffer {
    return this.tables.get(kindOf(block)) ?? this.tables.get(this.kinds[0]!)!;
  }

  private build(positions: number): Map<string, Buffer> {
    const tables = new Map<string, Buffer>();
    try {
      for (const kind of this.kinds) tables.set(kind, this.upload(JSON.parse(kind), positions));
      return tables;
    } catch (error) {
      this.device.release(...tables.values());
      throw error;
    }
  }

  private upload({ rope, headDim }: { rope: Rope; headDim: number }, positions: number): Buffer {
    const frequencies = ropeFrequencies({ ...rope, headDim });
    return this.device.upload(ropeTable(positions, frequencies, ropeAttentionFactor(rope)), "rope angles");
  }

  release(): void {
    this.device.release(...this.tables.values());
    this.tables = new Map();
    this.positions = 0;
  }
}

/** Returns everything that a table depends on, as JSON. */
function kindOf({ rope = UNUSED, headDim }: Rotated): string {
  return JSON.stringify({ rope, headDim });
}

/** Positions of a model that rotates nothing. */
const UNUSED: Rope = { ropeTheta: 10_000 };
