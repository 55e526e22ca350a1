/** The page's end of a live session: what anywidget's model carries, as a store and its link. */

import { type DeckDocument, type Schedule, type TaskRecord, readDocument, readJson } from "./model/document.ts";
import { type Link, type State, type Status, Store } from "./store.ts";

/** What anywidget gives as `model`. */
export interface Model {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  send(content: unknown): void;
  on(event: string, listener: (...given: never[]) => void): void;
}

/** As widgets/live.py tells it. */
interface News {
  position: number;
  status: Status;
  trouble: string;
  records: Record<string, TaskRecord>;
  schedules: Schedule[] | null;
  metas: DeckDocument["metas"];
}

/** Milliseconds without an answer after which the page says that the kernel is silent. */
const SILENCE = 4000;

/** The store of a model: its document, kept up to date by its messages. */
export async function openLink(model: Model): Promise<Store> {
  const waiting: Promise<News>[] = [];
  const receive = (content: { kind: string; count?: number }, buffers: DataView[]) => {
    if (content.kind === "heard") kernel.heard();
    else if (content.kind === "news") enqueue(readJson(buffers[0] as DataView<ArrayBuffer>) as Promise<News>);
    else if (content.kind === "back") store?.back(content.count);
  };
  // Messages may come while the document is still read, and each takes its time to unpack: they keep their order.
  let store: Store | null = null;
  let last: Promise<void> = Promise.resolve();
  const enqueue = (news: Promise<News>) => {
    if (!store) waiting.push(news);
    else last = last.then(async () => take(await news));
  };
  model.on("msg:custom", receive as never);
  const take = (news: News) => {
    kernel.answered();
    store?.progress(news);
  };
  const kernel = new KernelLink(model, (trouble) => store?.update({ trouble, playing: false }));
  const document = await readDocument(model.get("_document") as DataView<ArrayBuffer>);
  store = new Store(document, model.get("_is_live") ? kernel : null);
  store.update({
    selected: (model.get("selection") as number | null) ?? null,
    breakpoints: new Set(model.get("breakpoints") as number[]),
  });
  waiting.forEach(enqueue);
  model.on("change:selection", () => store.update({ selected: model.get("selection") as number | null }));
  model.on("change:breakpoints", () => {
    store.update({ breakpoints: new Set(model.get("breakpoints") as number[]) });
  });
  return store;
}

class KernelLink implements Link {
  private timer: ReturnType<typeof setTimeout> | undefined;
  busy = false;

  constructor(
    private readonly model: Model,
    private readonly gone: (trouble: string) => void,
  ) {}

  /** The kernel has taken the command, and is going to answer. */
  heard(): void {
    clearTimeout(this.timer);
  }

  /** The kernel has said what a command did. */
  answered(): void {
    this.busy = false;
    this.heard();
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

  share({ selected, breakpoints }: Pick<State, "selected" | "breakpoints" | "tab">): void {
    this.model.set("selection", selected);
    this.model.set("breakpoints", [...breakpoints].sort((a, b) => a - b));
    this.model.save_changes();
  }

  inspect(task: number): void {
    this.send({ kind: "inspect", task });
  }

  private ask(content: unknown): void {
    this.busy = true;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.silent(), SILENCE);
    this.send(content);
  }

  private send(content: unknown): void {
    try {
      this.model.send(content);
    } catch {
      this.answered();
      this.gone("This deck's kernel is gone: it was restarted or shut down. Run the cell again.");
    }
  }

  private silent(): void {
    this.busy = false;
    this.gone(
      "The kernel does not answer. If it is busy, the deck goes on when it is free; if it was restarted, run the cell again.",
    );
  }
}
