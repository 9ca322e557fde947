/** A teacher on this device: a model folder that only scores, next to the student. */
import type { Device } from "../../../engine/compute/device.ts";
import type { PackedTokens, TopTokens } from "../../../engine/contract/backend.ts";
import type { Teacher, TeacherOptions } from "../../../engine/contract/teacher.ts";
import type { Tokenizer } from "../../../engine/contract/text.ts";
import type { LanguageModel } from "../../../engine/model/language_model.ts";
import { shapeOf } from "../../../engine/model/model_shape.ts";
import { loadModel, openModel } from "../../../engine/model/open_model.ts";
import { fittingOptions } from "./plan/fit.ts";
import { DEFAULT_SHAPE } from "./plan/run_shape.ts";
import { TEACHER_OPTIONS } from "./teacher_options.ts";
import { topTokens } from "./topk_loss.ts";

/** Scores with the weights of a folder. Open it before the student, whose plan then counts the teacher's memory. */
export class LocalTeacher implements Teacher {
  readonly name: string;
  readonly tokenizer: Tokenizer | undefined;
  private model: LanguageModel;
  private readonly remake: () => Promise<LanguageModel>;

  private constructor(
    model: LanguageModel,
    of: { name: string; tokenizer: Tokenizer | undefined; remake: () => Promise<LanguageModel> },
  ) {
    this.model = model;
    this.name = of.name;
    this.tokenizer = of.tokenizer;
    this.remake = of.remake;
  }

  /**
   * Opens a folder of a model, or of an adapter and its base, on the student's device.
   * @throws {ConfigError} for a folder that cannot be read; {OutOfMemoryError} where its weights do not fit
   */
  static async open(folder: string, { device }: { readonly device: Device }): Promise<LocalTeacher> {
    const opened = await openModel(folder);
    const work = {
      model: { ...shapeOf(opened.files), adapters: opened.adapters.map(({ adapter }) => adapter) },
      options: TEACHER_OPTIONS,
      shape: { ...DEFAULT_SHAPE, isTrained: false },
      fixedSettings: "all",
    } as const;
    const options = await fittingOptions(device, work, { isExact: false });
    const remake = () => loadModel(device, opened, options);
    return new LocalTeacher(await remake(), { name: folder, tokenizer: opened.tokenizer, remake });
  }

  get contextLength(): number {
    return this.model.contextLength;
  }

  async logprobs(rows: PackedTokens, { temperature, mask }: TeacherOptions): Promise<Float32Array> {
    return (await this.model.logprobs(rows, { policy: "current", temperature, mask })).logprobs;
  }

  top(rows: PackedTokens, options: TeacherOptions & { readonly k: number }): Promise<TopTokens> {
    return topTokens(this.model, rows, { policy: "current", ...options });
  }

  async recover(): Promise<void> {
    this.model = await this.remake();
  }

  close(): void {
    this.model.release();
  }
}
