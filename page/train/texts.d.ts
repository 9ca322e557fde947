/** Files that the build inlines as text. */
declare module "*.yaml" {
  const text: string;
  export default text;
}
declare module "*.jsonl" {
  const text: string;
  export default text;
}
