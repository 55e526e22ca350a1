/** Validation of a deck's document: every index must be in range, because the views do not check again. */

import { CATEGORIES, type Clock, type Curve, type DeckDocument, FORMAT, type Memory, NONE, type Schedule, VERSION } from "./document.ts";

/** Error for a document that cannot be shown; its message is a sentence. */
export class DocumentError extends Error {}

/** The table that a column's indices refer to; "number" for plain numbers. With "?", the column may contain NONE. */
type Refers = "task" | "device" | "text" | "form" | "meta" | "call" | "line" | "number";
type Columns = Record<string, Refers | `${Refers}?`>;

const TABLES = {
  tasks: {
    name: "text", kind: "text", call: "call?", line: "line?", operation: "text?", parameter: "text?", device: "device",
    takes: "form",
  },
  edges: { task: "task", output: "number", next: "task", input: "number" },
  calls: { path: "text", class: "text", parent: "call?", index: "number" },
  saved: {
    task: "task", slot: "text?", storage: "number?", bytes: "number", meta: "meta?", parameter: "text?", held: "number",
  },
} as const satisfies Record<string, Columns>;

const REPLAYS = {
  task: "task", storage: "number", count: "number", bytes: "number", ns: "number", kept: "number", kept_bytes: "number",
} as const satisfies Columns;

const PHASES = ["forward", "backward", "optimizer"];

type Counts = Record<Refers, number>;

/** Check a document that was read. Throw DocumentError if it is damaged. */
export function checkDocument(content: unknown): DeckDocument {
  const found = content as Partial<DeckDocument> | null;
  if (typeof found !== "object" || found === null || found.format !== FORMAT) {
    throw new DocumentError("This is not the data of a tapescope deck.");
  }
  if (typeof found.version !== "number" || found.version > VERSION) {
    const versions = `format ${String(found.version)}, this page reads ${VERSION}`;
    throw new DocumentError(
      `This deck was written by a newer tapescope (${versions}). Update tapescope, or save the page again.`,
    );
  }
  if (found.version < VERSION) {
    const versions = `format ${found.version}, this page reads ${VERSION}`;
    throw new DocumentError(`This deck was written by an older tapescope (${versions}). Save the page again.`);
  }
  if (!found.tasks?.name?.length || !found.edges || !found.schedules?.length) {
    throw damaged("tasks, edges or schedules are missing");
  }
  try {
    checkAll(found as DeckDocument);
  } catch (error) {
    if (error instanceof DocumentError) throw error;
    throw damaged("a field is missing or has the wrong type"); // not a list, or a record with missing fields
  }
  return found as DeckDocument;
}

function checkAll(document: DeckDocument): void {
  const { texts, metas, forms, lines, calls, tasks } = document;
  const counts: Counts = {
    task: tasks.name.length,
    device: document.devices.length,
    text: texts.length,
    form: forms.length,
    meta: metas.length,
    call: calls.path.length,
    line: lines.length,
    number: Infinity,
  };
  if (texts.some((text) => typeof text !== "string")) throw damaged("a text is not a string");
  if (document.devices.some((device) => typeof device !== "string")) throw damaged("a device has no name");
  if (document.phases.some(({ name }) => !PHASES.includes(name))) throw damaged("a phase has an unknown name");
  if (lines.some(({ short, code }) => typeof short !== "string" || !Array.isArray(code))) {
    throw damaged("a source line is incomplete");
  }
  if (metas.some(({ shape }) => shape !== null && !Array.isArray(shape))) throw damaged("a shape is not a list");
  for (const form of forms) checkIndices(form, "meta", counts);
  for (const [name, columns] of Object.entries(TABLES)) {
    checkTable(name, document[name as keyof typeof TABLES], columns, counts);
  }
  const { name, created } = tasks;
  if (created) checkTable("tasks", { name, created }, { name: "text", created: "number?" }, counts);
  const { task, made_by } = document.saved;
  if (made_by) checkTable("saved", { task, made_by }, { task: "task", made_by: "text?" }, counts);
  if (calls.parent.some((parent, call) => parent >= call)) throw damaged("a module call precedes its parent");
  checkInputs(document);
  for (const schedule of document.schedules) checkSchedule(schedule, counts);
  checkIndices([document.position], "number", { ...counts, number: document.schedules[0].order.length + 1 });
  checkRecords(document, counts);
  for (const { tasks } of [...(document.groups?.found ?? []), ...(document.groups?.refused ?? [])]) {
    checkIndices(tasks, "task", counts);
  }
}

function checkTable(name: string, table: Record<string, number[]>, columns: Columns, counts: Counts): void {
  const [first] = Object.keys(columns);
  for (const [column, refers] of Object.entries(columns)) {
    const values = table[column];
    if (values?.length !== table[first].length) {
      throw damaged(`${name}.${column} has ${values?.length ?? "no"} rows, ${name}.${first} ${table[first].length}`);
    }
    checkIndices(values, refers, counts);
  }
}

function checkIndices(values: readonly number[], refers: Refers | `${Refers}?`, counts: Counts): void {
  const least = refers.endsWith("?") ? NONE : 0;
  const what = refers.replace("?", "") as Refers;
  const count = counts[what];
  for (const value of values) {
    if (Number.isSafeInteger(value) && value >= least && value < count) continue;
    throw damaged(`${what} ${String(value)} is out of range${count < Infinity ? `, there are ${count}` : ""}`);
  }
}

/** Check that each edge and each root refers to an existing input of its task. */
function checkInputs({ tasks, edges, roots, forms }: DeckDocument): void {
  const check = (task: number, input: number) => {
    const form = forms[tasks.takes[task]];
    if (!form) throw damaged(`task ${String(task)} is out of range, there are ${tasks.name.length}`);
    if (!(Number.isInteger(input) && input >= 0 && input < form.length)) {
      throw damaged(`input ${String(input)} of task ${task} is out of range, there are ${form.length}`);
    }
  };
  edges.next.forEach((task, edge) => check(task, edges.input[edge]));
  for (const [task, input] of roots) check(task, input);
}

function checkSchedule(schedule: Schedule, counts: Counts): void {
  const { order, by_hand, batches = [], keys, memory, policy, title } = schedule;
  checkIndices(order, "task", counts);
  checkIndices(by_hand, "task", counts);
  for (const batch of batches) checkIndices(batch, "task", counts);
  if (new Set(order).size !== order.length) throw damaged(`a task runs twice under ${policy}`);
  if (typeof policy !== "string" || typeof title !== "string") throw damaged("a schedule has no name");
  if (typeof keys !== "string" && keys.length !== counts.task) throw damaged(`${policy} has no key for each task`);
  if (memory) checkMemory(memory, counts);
  if (schedule.clock) checkClock(schedule.clock, order.length, counts);
  if (schedule.replays) checkTable("replays", schedule.replays, REPLAYS, counts);
  for (const { device, levels } of schedule.lane_levels ?? []) {
    checkIndices([device], "device", counts);
    checkIndices(levels, "number", counts);
    if (levels.length > order.length) throw damaged("a device's memory does not match its order");
  }
  for (const curve of schedule.curves ?? []) checkCurve(curve, order.length, counts);
}

function checkClock({ start, duration, ready = [], still = [] }: Clock, length: number, counts: Counts): void {
  if (start.length !== duration.length || start.length > length) throw damaged("its times do not match its order");
  for (const column of [start, duration, ready]) checkIndices(column, "number", counts);
  for (const { device, from, to, text } of still) {
    checkIndices([device], "device", counts);
    if (!(from <= to) || typeof text !== "string") throw damaged("an idle stretch has no valid times");
  }
}

function checkCurve({ starts, levels }: Curve, length: number, counts: Counts): void {
  if (starts.length !== length + 1) throw damaged("a curve does not match its order");
  checkIndices(levels, "number", counts);
  checkIndices(starts, "number", { ...counts, number: levels.length });
  if (starts.some((start, place) => place > 0 && start < starts[place - 1])) throw damaged("a curve is not sorted");
}

function checkMemory(memory: Memory, counts: Counts): void {
  const { before, nbytes, events, starts, born_as, changes, forward_ns, rows, event_places } = memory;
  const storages = { ...counts, number: nbytes.length };
  const categories = { ...counts, number: CATEGORIES.length };
  if (born_as.length !== nbytes.length || changes.length % 4 || !starts.length) throw damaged("its memory is incomplete");
  checkIndices([...nbytes, ...changes.filter((_, at) => at % 4 === 0)], "number", counts);
  checkIndices([before], "number", { ...counts, number: nbytes.length + 1 });
  checkIndices(events.map((event) => (event < 0 ? ~event : event)), "number", storages);
  for (const row of rows) checkIndices(row.storages, "number", storages);
  if (rows.some((row) => !row.storages.length)) throw damaged("a lifetime has no storage");
  checkIndices(forward_ns, "number", counts);
  if (forward_ns.length && forward_ns.length !== starts[0]) throw damaged("the times of its forward do not match its events");
  checkIndices(changes.filter((_, at) => at % 4 === 2), "number", storages);
  checkIndices(changes.filter((_, at) => at % 4 === 3), "number", categories);
  checkIndices(born_as, "number", categories);
  checkIndices(starts, "number", { ...counts, number: events.length + 1 });
  if (starts.some((start, place) => place > 0 && start < starts[place - 1])) throw damaged("its memory is not sorted");
  if (event_places && event_places.length !== events.length) throw damaged("the places of its memory do not match its events");
}

function checkRecords({ records }: DeckDocument, counts: Counts): void {
  checkIndices(Object.keys(records).map(Number), "task", counts);
  for (const { inputs, outputs } of Object.values(records)) {
    for (const gradients of [inputs, outputs]) {
      for (const gradient of gradients) if (gradient) checkIndices([gradient.meta], "meta", counts);
    }
  }
}

function damaged(how: string): DocumentError {
  return new DocumentError(`This deck's data is damaged: ${how}. Save the page again.`);
}
