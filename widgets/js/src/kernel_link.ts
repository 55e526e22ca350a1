/** The page's side of a session or a recording: anywidget's model as a store and its link. */

import { areEqual } from "./equal_sets.ts";
import { readDocument, readJson } from "./model/read_document.ts";
import type { StopPoint } from "./model/stops.ts";
import { type Changed, type Command, type Link, type Progress, type State, Store } from "./store.ts";

/** The `model` argument of anywidget. */
export interface Model {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  send(content: unknown): void;
  on(event: string, listener: (...args: never[]) => void): void;
  /** Remove all listeners added by `on`. */
  off(): void;
  /** JupyterLab's manager has the kernel; those of other notebooks may not. */
  widget_manager?: { kernel?: { statusChanged?: Signal<string>; disposed?: Signal<void> } | null };
}

/** A signal of Lumino, the toolkit of JupyterLab. */
interface Signal<T> {
  connect(slot: (sender: unknown, value: T) => void): void;
  disconnect(slot: (sender: unknown, value: T) => void): void;
}

/** A message of widgets/deck/live_publisher.py; its content is in a buffer. */
interface Message {
  kind: "heard" | "news" | "back";
  count?: number;
}

/** Milliseconds without an answer after which the page says that the kernel is silent. */
const SILENCE = 4000;

/** Statuses in JupyterLab of a kernel that has lost its state, or soon will; "autorestarting" follows a crash. */
const GONE = ["restarting", "autorestarting", "terminating", "dead"];

/**
 * Return the store of a model. Its messages keep the document and the shared choices up to date until `closing` is
 * aborted.
 */
export function openLink(model: Model, closing: AbortSignal): Promise<Store> {
  const kernel = new KernelLink(model, (change) => later((store) => store.update(change)));
  const choices = new Choices(model);
  const opening = open(model, kernel, choices);
  // Messages arrive while the document is still being read, and each takes time to decompress. The chain of promises
  // preserves their order.
  let last: Promise<unknown> = opening.catch(() => {});
  const later = (act: (store: Store) => void | Promise<void>) => {
    last = last.then(() => opening.then(act)).catch((error: unknown) => console.error(error));
  };
  if (model.get("_is_live")) watchKernel(model, () => kernel.lost(), closing);
  model.on("msg:custom", (message: Message, buffers: DataView<ArrayBuffer>[]) => {
    if (message.kind === "heard") kernel.acknowledge();
    else if (message.kind === "back") later((store) => store.back(message.count));
    else if (message.kind === "news") later((store) => take(store, kernel, buffers[0]));
  });
  for (const name of CHOICES) {
    model.on(`change:${name}`, () => {
      if (choices.isSharing) return;
      const chosen = model.get(name);
      later((store) => choices.take(store, name, chosen));
    });
  }
  return opening;
}

/** Call `lost` when the model's kernel is restarted, crashes or is shut down. */
function watchKernel(model: Model, lost: () => void, closing: AbortSignal): void {
  model.on("comm_live_update", lost); // triggered by widget managers for all models when the user restarts the kernel
  const { statusChanged, disposed } = model.widget_manager?.kernel ?? {};
  const check = (_: unknown, status: string) => GONE.includes(status) && lost();
  statusChanged?.connect(check);
  disposed?.connect(lost); // after a shutdown, which may have no other sign
  closing.addEventListener("abort", () => {
    statusChanged?.disconnect(check);
    disposed?.disconnect(lost);
  });
}

async function open(model: Model, kernel: KernelLink, choices: Choices): Promise<Store> {
  const document = await readDocument(model.get("_document") as DataView<ArrayBuffer>);
  const store = new Store(document, model.get("_is_live") ? kernel : null);
  for (const name of CHOICES) choices.take(store, name, model.get(name));
  store.subscribe((changed) => choices.share(store, changed));
  if (store.link) kernel.greet(document.revision ?? 0);
  return store;
}

async function take(store: Store, kernel: KernelLink, news: DataView<ArrayBuffer>): Promise<void> {
  const progress = (await readJson(news)) as Progress;
  kernel.answered();
  store.progress(progress);
}

const CHOICES = ["selection", "breakpoints", "_stops"] as const;

/**
 * Choices synchronized with Python: the selected task in both directions, all stops from Python only. The page requests
 * a breakpoint by a message, as every other change of a session; Python answers with the trait.
 */
class Choices {
  /**
   * True while the page itself sets a trait: the model also reports such changes, and they must not be applied again.
   */
  isSharing = false;
  /** The breakpoints that Python has once it has handled all messages. */
  private requested: ReadonlySet<number> = new Set();

  constructor(private readonly model: Model) {}

  /** Apply a choice made in Python, where any number may stand for a task. */
  take(store: Store, name: (typeof CHOICES)[number], chosen: unknown): void {
    const isTask = (task: unknown) => Number.isInteger(task) && (task as number) in store.graph.titles;
    if (name === "selection") store.update({ selected: isTask(chosen) ? (chosen as number) : null });
    else if (name === "_stops") {
      if (chosen && store.link) store.update({ stops: chosen as StopPoint[] });
    } else {
      const breakpoints = new Set((chosen as number[]).filter(isTask));
      this.requested = breakpoints;
      if (!areEqual(breakpoints, store.state.breakpoints)) store.update({ breakpoints });
    }
  }

  /** Send the page's choices to Python. */
  share({ state }: Store, changed: Changed): void {
    const { model, requested } = this;
    const { selected, breakpoints } = state;
    if (changed.has("breakpoints")) {
      this.requested = breakpoints;
      for (const task of new Set([...requested, ...breakpoints])) {
        const on = breakpoints.has(task);
        if (on !== requested.has(task)) send(model, { kind: "breakpoint", task, on });
      }
    }
    if (!changed.has("selected") || selected === (model.get("selection") ?? null)) return;
    this.isSharing = true;
    try {
      model.set("selection", selected);
      model.save_changes();
    } catch (error) {
      console.error(error); // the other views must still receive the change
    } finally {
      this.isSharing = false;
    }
  }
}

/** Send a message. Return whether there is a kernel to receive it. */
export function send(model: Model, content: unknown): boolean {
  try {
    model.send(content);
    return true;
  } catch {
    return false;
  }
}

class KernelLink implements Link {
  private timer: ReturnType<typeof setTimeout> | undefined;
  busy = false;

  constructor(
    private readonly model: Model,
    private readonly report: (change: Partial<State>) => void,
  ) {}

  /** Request the current state, and everything that happened since the document was written. */
  greet(revision: number): void {
    send(this.model, { kind: "hello", revision });
  }

  /** Note that the kernel has received the command and will answer. */
  acknowledge(): void {
    clearTimeout(this.timer);
  }

  /** Note that the kernel has answered a command. */
  answered(): void {
    this.busy = false;
    this.acknowledge();
  }

  step(count: number): void {
    this.ask({ kind: "step", count });
  }

  stepTask(task: number): void {
    this.ask({ kind: "step", task });
  }

  runTo(task: number): void {
    this.ask({ kind: "run_to", task });
  }

  run(): void {
    this.ask({ kind: "run" });
  }

  stop(): void {
    this.send({ kind: "stop" });
  }

  setPolicy(policy: string): void {
    this.ask({ kind: "policy", policy });
  }

  inspect(task: number): void {
    this.send({ kind: "inspect", task });
  }

  ask(content: Command | { kind: "step" | "run_to" | "run" | "policy"; [more: string]: unknown }): void {
    this.busy = true;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.silent(), SILENCE);
    this.send(content);
  }

  private send(content: unknown): void {
    if (!send(this.model, content)) this.lost();
  }

  /** Note that the kernel no longer exists. */
  lost(): void {
    this.answered();
    const trouble = "The kernel of this deck was restarted or shut down. Run the cell again.";
    this.report({ trouble, status: "closed", playing: false, checking: null });
  }

  /** Report that the kernel is silent. Playback keeps its state, because it continues with the kernel's next answer. */
  private silent(): void {
    this.report({
      trouble: "The kernel does not answer. If it is busy, the deck continues later; if it was restarted, run the cell again.",
    });
  }
}
