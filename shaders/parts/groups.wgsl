// A workgroup of a grid that is folded over y above 65,535 of them. Without the thread in it, so that both stay uniform.

struct Group {
  @builtin(workgroup_id) id: vec3u,
  @builtin(num_workgroups) count: vec3u,
}

fn group_index(group: Group) -> u32 {
  return group.id.y * group.count.x + group.id.x;
}
