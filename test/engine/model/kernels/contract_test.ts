/** Each kernel of the model beside its shader. */
import { test } from "vitest";
import * as adamw from "../../../../src/engine/model/kernels/adamw.ts";
import * as attention from "../../../../src/engine/model/kernels/attention.ts";
import * as attentionChunks from "../../../../src/engine/model/kernels/attention_chunks.ts";
import * as attentionStep from "../../../../src/engine/model/kernels/attention_step.ts";
import * as attentionSubgroup from "../../../../src/engine/model/kernels/attention_subgroup.ts";
import * as attentionTiled from "../../../../src/engine/model/kernels/attention_tiled.ts";
import * as cache from "../../../../src/engine/model/kernels/cache.ts";
import * as decodeRows from "../../../../src/engine/model/kernels/decode_rows.ts";
import * as elementwise from "../../../../src/engine/model/kernels/elementwise.ts";
import * as embedding from "../../../../src/engine/model/kernels/embedding.ts";
import * as gatherTokens from "../../../../src/engine/model/kernels/gather_tokens.ts";
import * as geglu from "../../../../src/engine/model/kernels/geglu.ts";
import * as logprob from "../../../../src/engine/model/kernels/logprob.ts";
import * as maskLogits from "../../../../src/engine/model/kernels/mask_logits.ts";
import * as norm from "../../../../src/engine/model/kernels/norm.ts";
import * as rope from "../../../../src/engine/model/kernels/rope.ts";
import * as ropeAppend from "../../../../src/engine/model/kernels/rope_append.ts";
import * as sample from "../../../../src/engine/model/kernels/sample.ts";
import * as swiglu from "../../../../src/engine/model/kernels/swiglu.ts";
import * as valueHead from "../../../../src/engine/model/kernels/value_head.ts";
import { expectContract, kernelsOf } from "../../../fixtures/kernel_contract.ts";

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
