/** What a server of the toy model has saved. Each file of its checkpoints says how many optimiser steps it holds. */

interface Listed {
  readonly tinker_path: string;
}

/** The steps in the weights of a checkpoint. */
export async function stepsOf(url: string, path: string): Promise<number> {
  const [run, kind, name] = path.replace("tinker://", "").split("/");
  const archive = await fetch(`${url}/api/v1/training_runs/${run}/checkpoints/${kind}/${name}/archive`);
  const { url: at } = (await archive.json()) as { url: string };
  const tar = Buffer.from(await (await fetch(at)).arrayBuffer());
  return Number(tar.subarray(512, 532).toString().trim());
}

export async function savedPaths(url: string): Promise<string[]> {
  const answer = await fetch(`${url}/api/v1/checkpoints?limit=100000`);
  const { checkpoints } = (await answer.json()) as { checkpoints: readonly Listed[] };
  return checkpoints.map((it) => it.tinker_path);
}
