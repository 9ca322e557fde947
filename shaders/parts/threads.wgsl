// A thread of a grid whose workgroups matter only for their size; folded over y above 65,535 of them.

override WORKGROUP: u32 = 64u;

struct Thread {
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) local: u32,
}

fn thread_index(thread: Thread) -> u32 {
  return (thread.group.y * thread.groups.x + thread.group.x) * WORKGROUP + thread.local;
}
