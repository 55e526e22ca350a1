/** The ready queues panel: one queue, or one per device. */

import { el } from "../dom.ts";
import { timesOf } from "../model/task_times.ts";
import { lanesOf } from "../model/device_lanes.ts";
import { devicesWithQueues, deviceName } from "../model/queues.ts";
import type { Replay } from "../model/replay.ts";
import { waitingBytes } from "../model/input_buffer_bytes.ts";
import { hasMoved, type Store } from "../store.ts";
import { grouped, size } from "../format.ts";
import type { MakeView, Stage } from "../view_types.ts";
import { paced } from "./throttled_view.ts";
import { QueueHeight } from "./queue_height.ts";
import { canSteer, type LaneClock, OneOfSeveral, OneQueue } from "./queue_section.ts";
import { makeRunOn } from "./adopt_policy.ts";
import { SideTabs } from "./side_tabs.ts";

/** Number of devices from which on each closed queue is one line. */
const MANY = 4;
/** Maximum number of queues whose lengths fit into the head. */
const FEW = 2;

/** Content of the panel below the head. */
interface Queues {
  elements: HTMLElement[];
  show(): void;
  mark(): void;
  /** Text in the head. */
  readonly sum: string;
  /** Show as much as fits. Return the preferred height; 0 if it is unknown or takes all the space. */
  fit(): number;
  dispose(): void;
}

export const makeQueue: MakeView = (stage, parent) => {
  const { store } = stage;
  const devices = devicesWithQueues(store.replay);
  const queues = devices.length ? several(stage, devices) : one(stage);
  const title = devices.length ? "Ready queues" : "Ready queue";
  const sub = el("span", { class: "sub" });
  const tabs = devices.length ? new SideTabs(parent, [title, "Task"]) : null;
  const runOnPlace = el("div");
  const runOn = makeRunOn(stage, runOnPlace);
  const head = el("div", { class: "head" }, el("h3", {}, title), ...(tabs ? [tabs.element] : []), sub);
  const view = el("section", { class: "queue", "aria-label": title.toLowerCase() }, head, runOnPlace);
  view.classList.toggle("several", devices.length > 0);
  view.append(...queues.elements);
  parent.append(view);
  const height = new QueueHeight(stage, parent);

  const slow = paced(stage, (changed) => {
    if (changed.has("hoveredTask")) queues.mark();
    if (!hasMoved(changed) && !changed.has("selected") && !changed.has("marks")) return;
    view.classList.toggle("steerable", canSteer(store));
    queues.show();
    sub.textContent = sub.title = queues.sum;
    height.fit(queues.fit(), changed.has("tab"));
  });
  return {
    ...slow,
    update(changed) {
      runOn.update(changed);
      return slow.update(changed);
    },
    dispose() {
      queues.dispose();
      height.dispose();
      tabs?.dispose();
      view.remove();
    },
  };
};

function one(stage: Stage): Queues {
  const { store } = stage;
  const section = new OneQueue(stage);
  return {
    elements: [section.element],
    show: () => section.show(),
    mark: () => section.mark(),
    get sum() {
      return `${moreReady(store)} · ${size(waitingBytes(store.replay)[store.state.t])} waiting`;
    },
    fit: () => section.fit(),
    dispose: () => section.dispose(),
  };
}

function moreReady({ replay, state }: Store): string {
  // The block above the list shows the task that runs next.
  return `${grouped(Math.max(0, replay.queueLengths[state.t] - 1))} more`;
}

function several(stage: Stage, devices: readonly number[]): Queues {
  const { store } = stage;
  let opened: number | null = null;
  const sections = devices.map((device) => {
    const open = () => {
      opened = opened === device ? null : device;
      show();
    };
    return new OneOfSeveral(stage, device, deviceName(store.graph, device), open);
  });
  let sum = "";
  /** Device whose task runs; its queue has been brought into view. */
  let inView: OneOfSeveral | undefined;
  let known: { replay: Replay; revision: number; clocks: Map<number, LaneClock> } | null = null;
  const clocks = () => {
    const { document, replay, state } = store;
    if (known?.replay !== replay || known.revision !== state.revision) {
      const times = timesOf(document, replay);
      const lanes = times?.isWhole ? lanesOf(replay, times) : [];
      const found = lanes.map(({ device, busy }): [number, LaneClock] => [device, { times: times!, busy: busy ?? 0 }]);
      known = { replay, revision: state.revision, clocks: new Map(found) };
    }
    return known.clocks;
  };
  const show = () => {
    const queues = sections.map((section) => section.look());
    const first = queues.find(({ running }) => running >= 0)?.device ?? devices[0];
    sections.forEach((section, at) => {
      const others = queues.filter((_, other) => other !== at);
      const open = devices.length < MANY || (opened ?? first) === section.device;
      section.show(queues[at], others, open, clocks().get(section.device) ?? null);
    });
    const running = sections.find((_, at) => queues[at].running >= 0);
    if (running && running !== inView) bringIntoView(running.element);
    inView = running;
    sum = devices.length <= FEW ? queues.map(({ name, count }) => `${name} ${grouped(count)}`).join(" · ") : `${moreReady(store)} ready`;
  };
  return {
    elements: sections.map(({ element }) => element),
    show,
    mark: () => sections.forEach((section) => section.mark()),
    get sum() {
      return sum;
    },
    fit: () => 0,
    dispose() {},
  };
}

/** Scroll the panel but not the page; the focused element keeps its position. */
function bringIntoView({ parentElement: panel, offsetTop: top, offsetHeight: height }: HTMLElement): void {
  if (!panel || panel.matches(":hover, :focus-within")) return;
  const lowest = top + height - panel.clientHeight;
  if (panel.scrollTop < lowest || panel.scrollTop > top) panel.scrollTop = Math.min(top, lowest);
}
