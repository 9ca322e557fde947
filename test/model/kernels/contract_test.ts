/** Each kernel of the model beside its shader. */
import { test } from "vitest";
import * as adamw from "../../../src/model/kernels/adamw.ts";
import * as attention from "../../../src/model/kernels/attention.ts";
import * as attentionChunks from "../../../src/model/kernels/attention_chunks.ts";
import * as attentionStep from "../../../src/model/kernels/attention_step.ts";
import * as attentionSubgroup from "../../../src/model/kernels/attention_subgroup.ts";
import * as attentionTiled from "../../../src/model/kernels/attention_tiled.ts";
import * as cache from "../../../src/model/kernels/cache.ts";
import * as decodeRows from "../../../src/model/kernels/decode_rows.ts";
import * as elementwise from "../../../src/model/kernels/elementwise.ts";
import * as embedding from "../../../src/model/kernels/embedding.ts";
import * as gatherTokens from "../../../src/model/kernels/gather_tokens.ts";
import * as geglu from "../../../src/model/kernels/geglu.ts";
import * as logprob from "../../../src/model/kernels/logprob.ts";
import * as maskLogits from "../../../src/model/kernels/mask_logits.ts";
import * as norm from "../../../src/model/kernels/norm.ts";
import * as rope from "../../../src/model/kernels/rope.ts";
import * as ropeAppend from "../../../src/model/kernels/rope_append.ts";
import * as sample from "../../../src/model/kernels/sample.ts";
import * as swiglu from "../../../src/model/kernels/swiglu.ts";
import * as valueHead from "../../../src/model/kernels/value_head.ts";
import { expectContract, kernelsOf } from "../../fixtures/kernel_contract.ts";

const KERNELS = kernelsOf({
  adamw,
  attention,
  attentionChunks,
  attentionStep,
  attentionSubgroup,
  attentionTiled,
  cache,
  decodeRows,
  elementwise,
  embedding,
  gatherTokens,
  geglu,
  logprob,
  maskLogits,
  norm,
  rope,
  ropeAppend,
  sample,
  swiglu,
  valueHead,
});

test.each(KERNELS)("$name is what its shader declares", expectContract);
