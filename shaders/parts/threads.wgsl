// A grid whose workgroups matter only for their size; folded over y above 65,535 of them.
// A kernel defines compute_thread(index), which does nothing for an index beyond its work.

override WORKGROUP: u32 = 64u;

struct Thread {
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) local: u32,
}

@compute @workgroup_size(WORKGROUP)
fn main(thread: Thread) {
  compute_thread((thread.group.y * thread.groups.x + thread.group.x) * WORKGROUP + thread.local);
}
