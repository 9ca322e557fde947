/** A reporter for Stryker that prints each survivor when it is found: a run takes many minutes, and its report comes last. */
import { declareClassPlugin, PluginKind } from "@stryker-mutator/api/plugin";

class LiveSurvivors {
  onMutantTested({ status, fileName, location, mutatorName, replacement }) {
    if (status !== "Survived" && status !== "NoCoverage") return;
    const { line, column } = location.start;
    process.stderr.write(`${status}  ${fileName}:${line}:${column}  ${mutatorName}  ->  ${replacement}\n`);
  }
}

export const strykerPlugins = [declareClassPlugin(PluginKind.Reporter, "live-survivors", LiveSurvivors)];
