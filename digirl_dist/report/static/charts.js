// Curves with bands, drawn as SVG.

import { el, hint, short, svg } from "./dom.js";

const WIDTH = 460;
const HEIGHT = 200;
const EDGE = { left: 54, right: 10, top: 10, bottom: 28 };
const ROOM = 104; // for the names at the ends of lines
const LABELS = 12;
const LABEL = 12;

export function ticks(low, high, most = 5) {
  const raw = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw * 0.999999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step + 0);
  return found;
}

// lines: [{name, colour, points: [{x, y, low, high, at}], raw}]; ``raw`` are the points before they were smoothed.
// pick(point, line) is called for a click, with the point and line that are nearest there, of which ``says`` tells;
// ``now`` marks a place.
export function lineChart({ title, lines, bounds, pick, x_title = "iteration", now = null, says = (point, line) => `episodes of ${line.name}` }) {
  const points = lines.flatMap((line) => line.points);
  if (!points.length) return el("figure", { class: "chart" }, el("figcaption", {}, el("b", {}, title)), el("p", { class: "hint" }, "no values yet"));
  const named = lines.length > 1 && lines.length <= LABELS;
  const right = WIDTH - (named ? ROOM : EDGE.right);
  const xs = extent(points.map((point) => point.x), 0);
  const ys = bounds || extent(points.flatMap((point) => [point.low ?? point.y, point.high ?? point.y]), 0.08);
  const scale = {
    right,
    x: (value) => EDGE.left + ((value - xs[0]) / (xs[1] - xs[0])) * (right - EDGE.left),
    y: (value) => HEIGHT - EDGE.bottom - ((value - ys[0]) / (ys[1] - ys[0])) * (HEIGHT - EDGE.top - EDGE.bottom),
  };
  const canvas = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${lines.map(described).join("; ")}` });
  canvas.append(...axes(scale, xs, ys, x_title));
  for (const line of lines) canvas.append(...band(line, scale), ...(line.raw ? [path(line.raw, scale, `raw ${line.colour}`)] : []), ...curve(line, scale));
  if (named) canvas.append(...labels(lines, scale));
  if (now !== null) canvas.append(svg("line", { class: "now", x1: scale.x(now), x2: scale.x(now), y1: EDGE.top, y2: HEIGHT - EDGE.bottom }));
  const mark = svg("line", { class: "cursor", y1: EDGE.top, y2: HEIGHT - EDGE.bottom, visibility: "hidden" });
  canvas.append(mark, catcher(canvas, mark, { lines: lines.filter((line) => line.points.length), scale, xs, title, pick, x_title, says }));
  return el("figure", { class: pick ? "chart pickable" : "chart" }, el("figcaption", {}, el("b", {}, title)), canvas);
}

// The names of lines at their ends, below each other where they would overlap.
function labels(lines, scale) {
  const ends = lines.filter((line) => line.points.length).map((line) => ({ line, y: scale.y(line.points[line.points.length - 1].y) }));
  ends.sort((a, b) => a.y - b.y);
  ends.forEach((end, place) => (end.y = Math.max(end.y, place ? ends[place - 1].y + LABEL : EDGE.top)));
  const over = Math.max(0, (ends[ends.length - 1]?.y ?? 0) - (HEIGHT - EDGE.bottom));
  const cut = (name) => (name.length > 15 ? `${name.slice(0, 14)}…` : name);
  return ends.map(({ line, y }) => svg("text", { class: `line-name ${line.colour}`, x: scale.right + 5, y: y - over + 3.5 }, cut(line.name)));
}

// Bars of parts on top of each other: parts are [{name, colour, values}], with a value for each place of xs.
export function stackedBars({ title, xs, parts, x_title = "iteration" }) {
  const heights = xs.map((_, place) => parts.reduce((sum, part) => sum + part.values[place], 0));
  const ys = [0, Math.max(...heights) || 1];
  const pitch = (WIDTH - EDGE.left - EDGE.right) / xs.length;
  const scale = { right: WIDTH - EDGE.right, x: (place) => EDGE.left + (place + 0.5) * pitch, y: (value) => HEIGHT - EDGE.bottom - (value / ys[1]) * (HEIGHT - EDGE.top - EDGE.bottom) };
  const canvas = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${parts.map((part) => part.name).join(", ")}` });
  canvas.append(...axes({ ...scale, x: (value) => scale.x(value - xs[0]) }, [xs[0], xs[0] + xs.length - 1], ys, x_title));
  const width = Math.min(34, pitch * 0.8);
  xs.forEach((x, place) => {
    let below = 0;
    for (const part of parts) {
      const above = below + part.values[place];
      canvas.append(svg("rect", { class: `bar ${part.colour}`, x: scale.x(place) - width / 2, width, y: scale.y(above), height: scale.y(below) - scale.y(above) }));
      below = above;
    }
    const told = [`${title}, ${x_title} ${x}`, ...parts.map((part) => `${part.name} ${short(part.values[place])} s`)].join("\n");
    const on = { mousemove: (event) => hint(told, event), mouseleave: () => hint("") };
    canvas.append(svg("rect", { class: "catch", x: EDGE.left + place * pitch, y: 0, width: pitch, height: HEIGHT, on }));
  });
  const keys = el("p", { class: "keys" }, parts.map((part) => el("span", { class: `key ${part.colour}` }, part.name)));
  return el("figure", { class: "chart" }, el("figcaption", {}, el("b", {}, title), keys), canvas);
}

function described(line) {
  const last = line.points[line.points.length - 1];
  return last ? `${line.name} ends at ${short(last.y)}` : line.name;
}

function extent(values, margin) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  const largest = Math.max(Math.abs(low), Math.abs(high));
  if (high - low < 1e-9 * Math.max(1, largest)) [low, high] = [low - Math.max(0.5, 0.1 * largest), high + Math.max(0.5, 0.1 * largest)];
  return [low - margin * (high - low), high + margin * (high - low)];
}

function axes(scale, xs, ys, x_title) {
  const floor = HEIGHT - EDGE.bottom;
  const drawn = ticks(ys[0], ys[1]).flatMap((value) => [
    svg("line", { class: "grid", x1: EDGE.left, x2: scale.right, y1: scale.y(value), y2: scale.y(value) }),
    svg("text", { class: "tick end", x: EDGE.left - 6, y: scale.y(value) + 3.5 }, narrow(value)),
  ]);
  const marks = ticks(xs[0], xs[1], 6).filter((value) => x_title === "hours" || Number.isInteger(value));
  const places = marks.map((value) => svg("text", { class: "tick middle", x: scale.x(value), y: floor + 15 }, narrow(value)));
  return [...drawn, ...places, svg("text", { class: "tick end", x: scale.right, y: HEIGHT - 2 }, x_title)];
}

// A number that fits beside the axis, such as 1.25e7.
function narrow(value) {
  return Math.abs(value) < 1e5 ? short(value) : value.toExponential(2).replace(/\.?0*e\+/, "e");
}

function path(points, scale, kind) {
  const d = points.map((point) => `${scale.x(point.x).toFixed(1)} ${scale.y(point.y).toFixed(1)}`).join("L");
  return svg("path", { class: `line ${kind}`, d: `M${d}` });
}

function curve(line, scale) {
  if (!line.points.length) return [];
  const drawn = [path(line.points, scale, line.colour)];
  if (line.points.length <= 60) drawn.push(...line.points.map((point) => svg("circle", { class: `dot ${line.colour}`, cx: scale.x(point.x), cy: scale.y(point.y), r: 2.6 })));
  return drawn;
}

function band(line, scale) {
  const known = line.points.filter((point) => point.low !== undefined);
  if (known.length < 2) return [];
  const there = known.map((point) => `${scale.x(point.x).toFixed(1)} ${scale.y(point.high).toFixed(1)}`);
  const back = known.reverse().map((point) => `${scale.x(point.x).toFixed(1)} ${scale.y(point.low).toFixed(1)}`);
  return [svg("path", { class: `band ${line.colour}`, d: `M${[...there, ...back].join("L")}Z` })];
}

// The point of a line that is nearest to x: points are in order.
function nearest(points, x) {
  let [low, high] = [0, points.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle].x <= x) low = middle;
    else high = middle;
  }
  return Math.abs(points[high].x - x) < Math.abs(points[low].x - x) ? points[high] : points[low];
}

function catcher(canvas, mark, { lines, scale, xs, title, pick, x_title, says }) {
  // The points at the place that is nearest to the pointer, and the one that the pointer means.
  const found = (event) => {
    const box = canvas.getBoundingClientRect();
    const share = (((event.clientX - box.left) / box.width) * WIDTH - EDGE.left) / (scale.right - EDGE.left);
    const height = ((event.clientY - box.top) / box.height) * HEIGHT;
    const x = xs[0] + Math.min(1, Math.max(0, share)) * (xs[1] - xs[0]);
    const each = lines.map((line) => ({ line, point: nearest(line.points, x) }));
    const at = each.reduce((best, one) => (Math.abs(one.point.x - x) < Math.abs(best.point.x - x) ? one : best)).point.x;
    const there = each.filter((one) => Math.abs(one.point.x - at) <= (xs[1] - xs[0]) / 200);
    const away = (one) => Math.abs(scale.y(one.point.y) - height);
    return { at, there, meant: there.reduce((best, one) => (away(one) < away(best) ? one : best)) };
  };
  const move = (event) => {
    const { at, there, meant } = found(event);
    mark.setAttribute("x1", scale.x(at));
    mark.setAttribute("x2", scale.x(at));
    mark.setAttribute("visibility", "visible");
    const told = there.sort((a, b) => b.point.y - a.point.y).slice(0, LABELS).map(({ line, point }) => `${line.name} ${short(point.y)}`);
    hint([`${title}, ${x_title} ${short(at)}`, ...told, ...(pick ? [`click: ${says(meant.point, meant.line)}`] : [])].join("\n"), event);
  };
  const leave = () => {
    mark.setAttribute("visibility", "hidden");
    hint("");
  };
  const act = (event) => {
    const { meant } = found(event);
    hint("");
    pick(meant.point, meant.line);
  };
  const on = { mousemove: move, mouseleave: leave, ...(pick ? { click: act } : {}) };
  return svg("rect", { class: "catch", x: EDGE.left, y: 0, width: scale.right - EDGE.left, height: HEIGHT, on });
}
