/** The data of the page of recompute plans, as written by widgets/pages/frontier_page.py. */

/** Memory over the tasks, in bins of several tasks. */
export interface Levels {
  /** The highest level of each bin, bytes. */
  levels: number[];
  peak: number;
  end: number;
}

/** The fate of a storage: `d` dropped, `w` intermediate, `k` kept, `n` newly kept; `-` if it is not in the plan. */
export type Fate = "d" | "w" | "k" | "n" | "-";

export interface Plan extends Levels {
  /** Seconds by which a step takes longer. */
  seconds: number;
  /** Heading and value. */
  figures: [string, string][];
  sentences: string[];
  /** Bins in which saved storages are recomputed, and the bytes. */
  replays: [number, number][];
  /** The table by module, headings first. */
  cells: string[][];
  /** A letter for the fate of each listed storage. */
  fates: string;
  totals: [Fate, number][];
}

export interface Frontier {
  tasks: number;
  /** Tasks per bin. */
  size: number;
  /** The name of the first task in each bin. */
  names: string[];
  /** The place of the plan that is shown first, and of the requested one. */
  place: number;
  asked: number | null;
  measured: (Levels & { name: string })[];
  notes: string[];
  /** Size, operation, module, time, obstacle. */
  storages: [string, string, string, string, string][];
  /** Number of storages that are not listed. */
  others: number;
  /** The first plan drops nothing. */
  plans: Plan[];
}

/** Name and colour of each fate. */
export const FATES: Record<Fate, [string, string]> = {
  d: ["dropped", "accent"],
  w: ["recomputed for others", "buffer"],
  k: ["kept", "saved"],
  n: ["newly kept", "held"],
  "-": ["not needed", "line2"],
};
