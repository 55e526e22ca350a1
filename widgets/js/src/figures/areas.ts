/** Areas of stacked curves, some of which may be hidden. `area` mirrors `area_of` of widgets/pages/figure_html.py. */

type Point = [number, number];

/** Return the path commands for a step curve: each level holds until the next point. */
function moves(points: Point[]): string {
  let path = "";
  let across = 0;
  for (let at = 1; at < points.length; at++) {
    const [[x, y], [nextX, nextY]] = [points[at - 1], points[at]];
    across += nextX - x;
    if (nextY === y) continue;
    path += `${across ? `h${across}` : ""}v${nextY - y}`;
    across = 0;
  }
  return across ? `${path}h${across}` : path;
}

/** Return the path of the area between two step curves. */
export function area(xs: number[], tops: number[], floors: number[]): string {
  const there = xs.map((x, at): Point => [x, tops[at]]);
  const back = xs.map((x, at): Point => [x, floors[Math.max(at - 1, 0)]]).reverse();
  return `M${xs[0]} ${tops[0]}${moves(there)}V${back[0][1]}${moves(back)}z`;
}

/** Return the tops and floors of each curve; hidden curves have no height. */
export function stacked(heights: number[][], isHidden: boolean[], bottom: number): { tops: number[]; floors: number[] }[] {
  let floors = heights[0].map(() => bottom);
  return heights.map((each, curve) => {
    const tops = each.map((height, at) => floors[at] - (isHidden[curve] ? 0 : height));
    const found = { tops, floors };
    floors = tops;
    return found;
  });
}
