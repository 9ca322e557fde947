/** The part of mathjs that is used: its own declarations are a megabyte, which every compilation would read. */
declare module "mathjs" {
  export interface EvalFunction {
    evaluate(scope: Record<string, number>): unknown;
  }
  export interface MathNode {
    readonly type: string;
    compile(): EvalFunction;
    traverse(visit: (node: MathNode, path: string) => void): void;
  }
  export function parse(text: string): MathNode;
}
