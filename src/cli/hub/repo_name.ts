/** Names of repositories. */

/** True for `owner/name` as the Hugging Face Hub has them. */
export function isRepoName(text: string): boolean {
  return /^\w[\w.-]*\/\w[\w.-]*$/.test(text) && !text.includes("..");
}
