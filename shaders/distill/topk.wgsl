// KL between student and teacher over the teacher's k likeliest tokens at each place, its slope in the student's
// log-probs times the place's weight, and the student's mass on these tokens. Formulas: src/engine/algorithm/distill/topk.ts.
//   student, teacher, dlogprobs [rows, k]; weights, values, masses [rows]
// Grid: a thread per row.

//#include "parts/rows.wgsl"

struct Params { rows: u32, k: u32, reverse: u32, tail: u32, log_min: f32, most: f32 }

@group(0) @binding(0) var<storage, read> student: array<f32>;
@group(0) @binding(1) var<storage, read> teacher: array<f32>;
@group(0) @binding(2) var<storage, read> weights: array<f32>;
@group(0) @binding(3) var<storage, read_write> values: array<f32>;
@group(0) @binding(4) var<storage, read_write> masses: array<f32>;
@group(0) @binding(5) var<storage, read_write> dlogprobs: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

const TAIL_EPSILON = 1e-6;

// The value of the tail's term, and its derivative in the student's mass.
fn tail_term(mass: f32, teacher_mass: f32) -> vec2f {
  let q = clamp(1.0 - mass, TAIL_EPSILON, 1.0);
  let is_active = 1.0 - mass >= TAIL_EPSILON;
  if (params.reverse == 1u) {
    let log_ratio = log(q) - log(clamp(1.0 - teacher_mass, TAIL_EPSILON, 1.0));
    return vec2(q * log_ratio, select(0.0, -(log_ratio + 1.0), is_active));
  }
  let p = clamp(1.0 - teacher_mass, 0.0, 1.0);
  let value = p * (log(max(p, 1e-30)) - log(q));
  return vec2(value, select(0.0, p / q, is_active));
}

fn compute_row(row: u32) {
  let start = row * params.k;
  var value = 0.0;
  var mass = 0.0;
  var teacher_mass = 0.0;
  for (var i = start; i < start + params.k; i++) {
    mass += exp(student[i]);
    teacher_mass += exp(teacher[i]);
    let q = max(student[i], params.log_min);
    let p = max(teacher[i], params.log_min);
    if (params.reverse == 1u) {
      value += exp(q) * (q - p);
    } else {
      value += exp(p) * (p - q);
    }
  }
  var rest = vec2(0.0);
  if (params.tail == 1u) { rest = tail_term(mass, teacher_mass); }
  value += rest.x;
  let has_slope = (params.tail == 1u || value > 0.0) && abs(value) <= params.most;
  let weight = select(0.0, weights[row], has_slope);
  for (var i = start; i < start + params.k; i++) {
    let q = max(student[i], params.log_min);
    let p = max(teacher[i], params.log_min);
    let own = select(-exp(p), exp(q) * (q - p + 1.0), params.reverse == 1u);
    dlogprobs[i] = weight * (select(own, 0.0, student[i] < params.log_min) + rest.y * exp(student[i]));
  }
  let bounded = select(max(value, 0.0), value, params.tail == 1u);
  values[row] = clamp(bounded, -params.most, params.most);
  masses[row] = mass;
}
