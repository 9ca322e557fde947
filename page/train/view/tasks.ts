/** The choice of a task, and the folder of the model for the one that needs it. */
import { h } from "../../element.ts";
import { counted } from "../../format.ts";
import { droppedFolder, folderOf, type GivenFolder } from "../model_folder.ts";
import { RECIPES, type Recipe, type RecipeName, recipeNamed } from "../recipes.ts";
import { hasBegun, state } from "../state.ts";

export interface TaskActions {
  choose(recipe: RecipeName): void;
  /** The model was given, or could not be used. */
  changed(): void;
}

export function taskSection(actions: TaskActions): HTMLElement {
  const cards = RECIPES.map((recipe) => taskCard(recipe, actions));
  const needsModel = recipeNamed(state.recipe)!.needsModel;
  return h(
    "section",
    { "aria-labelledby": "task-title" },
    h("h2", { id: "task-title" }, "Task"),
    h("div", { class: "tasks", role: "radiogroup", "aria-labelledby": "task-title" }, cards),
    needsModel ? dropZone(actions) : undefined,
  );
}

function taskCard({ name, title, goal, how }: Recipe, { choose }: TaskActions): HTMLElement {
  const isChosen = name === state.recipe;
  const input = h("input", {
    ...{ type: "radio", name: "task", value: name, id: `task-${name}` },
    checked: isChosen,
    disabled: hasBegun() && !isChosen,
    onchange: () => choose(name),
  });
  return h(
    "label",
    { class: `card task${isChosen ? " chosen" : ""}` },
    input,
    h("span", { class: "task-text" }, h("strong", {}, title), h("span", {}, goal), h("span", { class: "soft" }, how)),
  );
}

function dropZone({ changed }: TaskActions): HTMLElement {
  const use = async (get: () => GivenFolder | Promise<GivenFolder>) => {
    try {
      Object.assign(state, { model: await get(), modelFault: undefined });
    } catch (error) {
      state.modelFault = (error as Error).message;
    }
    changed();
  };
  const zone = h(
    "div",
    { class: "card drop", id: "drop" },
    h("p", {}, h("strong", {}, "Drop the folder of a model here"), ", or choose it:"),
    h("p", { class: "row" }, [
      picker("Choose a folder", { id: "choose-folder", webkitdirectory: true }, use),
      picker("Choose files", { id: "choose-files", accept: ".json,.safetensors,.jinja" }, use),
    ]),
    h(
      "p",
      { class: "soft" },
      "Hugging Face's layout: config.json, .safetensors, tokenizer.json; Llama, Qwen, SmolLM, Gemma 3 or Mistral. The smallest that tell stories have 260,000 parameters (karpathy/tinyllamas, stories260K).",
    ),
    state.model && h("p", { class: "given-model" }, modelText(state.model)),
    state.modelFault && h("p", { class: "fault", role: "alert" }, state.modelFault),
  );
  const over = (isOver: boolean) => (event: Event) => {
    event.preventDefault();
    zone.classList.toggle("over", isOver);
  };
  zone.addEventListener("dragover", over(true));
  zone.addEventListener("dragleave", over(false));
  zone.addEventListener("drop", (event) => {
    over(false)(event);
    const items = event.dataTransfer?.items;
    if (items && !hasBegun()) void use(() => droppedFolder(items));
  });
  return zone;
}

type Use = (get: () => GivenFolder | Promise<GivenFolder>) => Promise<void>;

function picker(
  label: string,
  more: { id: string; webkitdirectory?: boolean; accept?: string },
  use: Use,
): HTMLElement {
  const input = h("input", {
    ...{ type: "file", multiple: true, class: "hidden", disabled: hasBegun() },
    ...more,
    onchange: () => void use(() => folderOf([...(input.files ?? [])])),
  });
  return h("label", { class: "button" }, label, input);
}

function modelText({ name, files }: GivenFolder): string {
  const bytes = [...files.values()].reduce((sum, { size }) => sum + size, 0);
  const size = bytes >= 1e6 ? `${(bytes / 1e6).toFixed(1)} MB` : `${counted(Math.ceil(bytes / 1e3))} kB`;
  return `${name}: ${files.size} files, ${size}`;
}
