// Eight independent chains of multiply-adds per thread, all in registers: the arithmetic peak a kernel can reach.

struct Params { rounds: u32, factor: f32 }

@group(0) @binding(0) var<storage, read_write> y: array<vec4f>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let start = f32(id.x) * 1e-6;
  let factor = vec4f(params.factor);
  var a = vec4f(start);
  var b = vec4f(start + 0.1);
  var c = vec4f(start + 0.2);
  var d = vec4f(start + 0.3);
  var e = vec4f(start + 0.4);
  var f = vec4f(start + 0.5);
  var g = vec4f(start + 0.6);
  var h = vec4f(start + 0.7);
  for (var i = 0u; i < params.rounds; i++) {
    a = a * factor + factor;
    b = b * factor + factor;
    c = c * factor + factor;
    d = d * factor + factor;
    e = e * factor + factor;
    f = f * factor + factor;
    g = g * factor + factor;
    h = h * factor + factor;
  }
  y[id.x] = a + b + c + d + e + f + g + h;
}
