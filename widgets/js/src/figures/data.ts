/** Hover data packed by widgets/pages/figure_html.py: each text and each list is stored once. */

/** Index of a text, or of each of its lines. */
export type Cell = number | number[];

/** A template, and the lists that fill it, one per column. */
export interface HoverTemplate {
  say?: string;
  columns?: number[];
}

export interface AxisTold {
  low: number;
  high: number;
  log: boolean;
  suffix: string;
  ink: string;
  grid: string;
  ticks?: [number, string][];
}

/** `x`, `y`, `stack`: indices of lists with values, with pixels from the top, and with heights in tenths of pixels. */
export interface TraceData extends HoverTemplate {
  axis: string;
  bars: boolean;
  steps?: boolean;
  colour?: string;
  x?: number;
  y?: number;
  stack?: number;
}

export interface PlotData {
  unified: boolean;
  head: string;
  axes: Record<string, AxisTold>;
  traces: TraceData[];
}

/** `sizes`, `around`: indices of lists with the bytes of each box, and with the index of its parent box. */
export interface TreeData extends HoverTemplate {
  sizes: number;
  around: number;
}

export interface HoverData {
  texts: string[];
  lists: Cell[][];
  figures: Record<string, PlotData | TreeData>;
}

export async function unpacked(packed: string): Promise<HoverData> {
  const bytes = Uint8Array.from(atob(packed), (each) => each.charCodeAt(0));
  const text = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(text).text()) as HoverData;
}

/** Return a list of numbers. */
export function numbers(data: HoverData, list: number | undefined): number[] {
  return list === undefined ? [] : (data.lists[list] as number[]);
}

/** Return the hover text of a point, in lines. */
export function linesOf(data: HoverData, template: HoverTemplate, at: number, x = ""): string[] {
  const text = (column: number): string => {
    const cell = data.lists[template.columns![column]][at] ?? [];
    return (Array.isArray(cell) ? cell : [cell]).map((each) => data.texts[each]).join("\n");
  };
  const filled = (template.say ?? "").replace(/%\{(?:customdata(?:\[(\d+)\])?|(x))\}/g, (_, column: string, across: string) =>
    across ? x : text(Number(column ?? 0)),
  );
  return filled.split("\n");
}

/** Format a number with thousands separators. */
export function numberText(value: number): string {
  return value.toLocaleString("en-US", { maximumSignificantDigits: 10 });
}
