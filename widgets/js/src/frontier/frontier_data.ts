/** What the page of recompute plans is given, as widgets/pages/frontier_page.py writes it. */

/** The level over the tasks, in bins of several. */
export interface Levels {
  /** The highest level of each bin, bytes. */
  levels: number[];
  peak: number;
  end: number;
}

/** What becomes of a storage: `d`ropped, made on the `w`ay, `k`ept, `n`ewly kept; `-` where the plan does not say. */
export type Fate = "d" | "w" | "k" | "n" | "-";

export interface Plan extends Levels {
  /** By which a step takes longer. */
  seconds: number;
  /** Heading and value. */
  figures: [string, string][];
  sentences: string[];
  /** Bins in which saved storages are made again, and their bytes. */
  replays: [number, number][];
  /** By module, headings first. */
  cells: string[][];
  /** A letter for each storage that is listed. */
  fates: string;
  totals: [Fate, number][];
}

export interface Frontier {
  tasks: number;
  /** Tasks of one bin. */
  size: number;
  /** Of the first task of each bin. */
  names: string[];
  /** The plan that is shown first, and the one that was asked for. */
  place: number;
  asked: number | null;
  measured: (Levels & { name: string })[];
  notes: string[];
  /** Size, operation, module, time, obstacle. */
  storages: [string, string, string, string, string][];
  /** How many more there are. */
  others: number;
  /** The first one lets go of nothing. */
  plans: Plan[];
}

/** Its name, and the colour that it has. */
export const FATES: Record<Fate, [string, string]> = {
  d: ["let go", "accent"],
  w: ["made on the way", "buffer"],
  k: ["kept", "saved"],
  n: ["newly kept", "held"],
  "-": ["not needed", "line2"],
};
