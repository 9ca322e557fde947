/**
 * Decodes running sequences chunk after chunk. A chunk is recorded whole and read back once. Where it pays, the next one is
 * submitted before that: its first tokens stay on the device, and what it draws for sequences that have ended is dropped.
 * Pages of an ended sequence may be given away at once, because the device runs whatever uses them later behind that chunk.
 */

import { OutOfMemoryError } from "../../../leaves/errors.ts";
import type { Data } from "../../compute/device.ts";
import { formatBytes } from "../../compute/memory.ts";
import { Scratch } from "../scratch.ts";
import type { Transformer } from "../transformer.ts";
import { type ChunkRows, chunkSteps, collect, deliver, type Earlier, readChunk, uploadRows } from "./chunk.ts";
import type { DecodeStep } from "./decode_step.ts";
import { drawGroups, hostRows, needsHost } from "./host_rows.ts";
import type { SpeculativeOptions } from "./ngram.ts";
import { type GenerationRun, ordered, weightsOfRows } from "./run.ts";
import type { Sequence } from "./sequence.ts";
import { Speculation } from "./speculation.ts";

/** A chunk that the device has, unread. */
export interface Ahead extends ChunkRows {
  /** Tokens that each sequence has before the chunk. */
  readonly drawn: readonly number[];
  readonly results: Promise<Data[]>;
}

/** Two chunks are under way where one would be: together they have as many steps, so that what joins waits no longer. */
const CHUNKS_UNDER_WAY = 2;

/** Steps of a chunk of sequences that nothing was guessed for: what they draw may repeat something. */
const UNGUESSED_STEPS = 4;

export class Decoding {
  private readonly model: Transformer;
  private readonly step: DecodeStep;
  private readonly warn: (message: string) => void;
  private readonly speculation: Speculation | undefined;
  /** False once memory has run out for it. */
  private isPipelined: boolean;
  /** Sequences decoded at a time; fewer once memory has run out. */
  private mostRows = Number.POSITIVE_INFINITY;

  constructor(
    model: Transformer,
    options: {
      step: DecodeStep;
      isPipelined: boolean;
      speculative?: SpeculativeOptions | undefined;
      warn: (message: string) => void;
    },
  ) {
    const { speculative, step, warn } = options;
    this.model = model;
    this.step = step;
    this.warn = warn;
    this.speculation = speculative && new Speculation(model, { step, speculative, warn });
    // Guesses follow from tokens that the host has.
    this.isPipelined = options.isPipelined && !speculative;
  }

  /**
   * Gives the sequences the tokens of one chunk at least.
   * @param ahead what the last call returned
   * @returns a chunk that runs on, for the next call
   */
  async advance(
    run: GenerationRun,
    running: readonly Sequence[],
    ahead: Ahead | undefined,
  ): Promise<Ahead | undefined> {
    if (!ahead) return this.start(run, running);
    const runningAhead = new Set(ahead.running);
    const isSame = running.every((sequence) => runningAhead.has(sequence) && !needsHost(sequence));
    const next = await this.finish(run, ahead, isSame);
    return isSame ? next : this.first(run, running);
  }

  private async start(run: GenerationRun, running: readonly Sequence[]): Promise<Ahead | undefined> {
    const chunk = this.first(run, running);
    if (chunk) return this.finish(run, chunk, true);
    for (const group of drawGroups(this.model, ordered(run, running))) await this.decodeGroup(run, group);
    return undefined;
  }

  /** Submits a chunk for sequences whose tokens the host has. */
  private first(run: GenerationRun, sequences: readonly Sequence[]): Ahead | undefined {
    const running = sequences.filter(({ stopped }) => !stopped);
    const isApart = running.length === 0 || running.some(needsHost);
    return isApart ? undefined : this.submit(run, ordered(run, running));
  }

  /** Gives the sequences of a chunk its tokens. @param goesOn whether the next chunk is submitted before */
  private async finish(run: GenerationRun, chunk: Ahead, goesOn: boolean): Promise<Ahead | undefined> {
    const next = goesOn ? this.next(run, chunk) : undefined;
    try {
      deliver(this.model, chunk, await chunk.results);
      return next;
    } catch (error) {
      // The next chunk continues from tokens that were not drawn.
      run.kept.release();
      if (!(error instanceof OutOfMemoryError)) throw error;
      this.isPipelined = false;
      return undefined;
    }
  }

  /** Submits the chunk after this one, for the sequences that it does not complete for certain. */
  private next(run: GenerationRun, { running, rows, drawn }: Ahead): Ahead | undefined {
    const goesOn = (row: number) => !running[row]!.stopped && drawn[row]! + rows.steps < running[row]!.limit;
    const sources = [...running.keys()].filter(goesOn);
    if (sources.length === 0) return undefined;
    const continued = sources.map((row) => running[row]!);
    const before = sources.map((row) => drawn[row]! + rows.steps);
    return this.submit(run, continued, { drawn: before, earlier: { next: rows.next, sources } });
  }

  /** Submits a chunk. @returns nothing where chunks are not pipelined, or memory does not suffice */
  private submit(
    run: GenerationRun,
    running: readonly Sequence[],
    from: { drawn?: readonly number[]; earlier?: Earlier } = {},
  ): Ahead | undefined {
    if (!this.isPipelined || running.length > this.mostRows) return undefined;
    const { drawn = running.map(({ tokens }) => tokens.length) } = from;
    try {
      const most = Math.ceil(chunkSteps(running) / CHUNKS_UNDER_WAY);
      const { rows, results } = this.record(run, running, { ...from, drawn, most });
      // Nobody may wait for a chunk whose sequences have all ended, or behind an error.
      results.catch(() => {});
      return { running, rows, drawn, results };
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) throw error;
      this.isPipelined = false;
      return undefined;
    }
  }

  /** Records a chunk of `most` steps or fewer, and runs it. Where it throws, nothing of it is recorded. */
  private record(
    run: GenerationRun,
    running: readonly Sequence[],
    at: { drawn: readonly number[]; earlier?: Earlier | undefined; most: number },
  ): ChunkRows & { results: Promise<Data[]> } {
    const { device } = this.model;
    const steps = stepsOf(running, at.drawn, at.most);
    // Before the mark: a fold may be recorded here, for others too.
    const weights = weightsOfRows(run, running);
    const mark = device.mark();
    try {
      const rows = run.kept.rows(running, { ...at, weights, steps, stride: at.most });
      run.kept.record(steps, (shift) => this.step.step(weights, { cache: run.cache, rows, shift }));
      return { running, rows, results: readChunk(this.model, { running, rows }) };
    } catch (error) {
      device.rollback(mark);
      run.kept.release();
      throw error;
    }
  }

  /** One chunk for sequences that are drawn together, for fewer at a time where memory runs out. */
  private async decodeGroup(run: GenerationRun, running: readonly Sequence[]): Promise<void> {
    for (let from = 0; from < running.length; ) {
      const part = running.slice(from, from + this.mostRows);
      try {
        await this.decodePart(run, part);
        from += part.length;
      } catch (error) {
        if (!(error instanceof OutOfMemoryError) || part.length === 1) throw error;
        this.mostRows = Math.ceil(part.length / 2);
        this.warn(
          `the device ran out of memory (${error.label}, ${formatBytes(error.bytes)}), and a chunk of sampling was repeated. ` +
            `From now on ${this.mostRows} sequences are decoded at a time; to start like that, set rollout.max_num_seqs=${this.mostRows}`,
        );
      }
    }
  }

  private async decodePart(run: GenerationRun, running: readonly Sequence[]): Promise<void> {
    if (!running.some(needsHost) && (await this.speculation?.advance(run, running))) return;
    if (running.some(needsHost)) return this.decodeWithHost(run, running);
    const drawn = running.map(({ tokens }) => tokens.length);
    const { rows, results } = this.record(run, running, { drawn, most: this.mostSteps(running) });
    try {
      deliver(this.model, { running, rows }, await results);
    } catch (error) {
      // Its buffers may be those that the driver refused.
      run.kept.release();
      throw error;
    }
  }

  /** One step of rows that the host takes part in. */
  private async decodeWithHost(run: GenerationRun, running: readonly Sequence[]): Promise<void> {
    // Before the part, whose refusal forgets what it recorded: a fold may be recorded here.
    const weights = weightsOfRows(run, running);
    await Scratch.recording(this.model.device, async (scratch) => {
      const host = hostRows(this.model, running, scratch);
      const rows = { ...uploadRows(running, { scratch, steps: 1 }), host };
      this.step.step(weights, { cache: run.cache, rows, shift: 0 });
      await collect(this.model, { running, rows });
    });
  }

  private mostSteps(running: readonly Sequence[]): number {
    return Math.min(chunkSteps(running), this.speculation ? UNGUESSED_STEPS : Number.POSITIVE_INFINITY);
  }
}

/**
 * Steps of a chunk: `most`, or what the longest of the sequences may still draw. Steps behind a sequence's limit write over keys
 * of its last page, so there are none for one that may come to need a mask: it drops what was drawn since, and goes on.
 */
function stepsOf(running: readonly Sequence[], drawn: readonly number[], most: number): number {
  const left = running.map(({ limit }, row) => limit - drawn[row]!);
  return Math.min(most, Math.max(...left), ...left.filter((_, row) => running[row]!.constraint));
}
