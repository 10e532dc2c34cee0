// A screenshot with what was done to it, the heat map of the policy, and what changed.

import { el, svg } from "./dom.js";
import { image } from "./source.js";

const CHANGED = 24;

export function picture(run, key, step, label) {
  const src = image(run, key, step);
  return src ? el("img", { src, alt: label, class: "shot" }) : el("span", { class: "blank" }, "no picture is shown");
}

// The action over a screenshot, in shares of its width and height.
export function marks(action) {
  if (!action || typeof action !== "object") return null;
  const drawn = svg("svg", { class: "marks", viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" });
  const share = (value) => (typeof value === "number" && value >= 0 && value <= 1 ? value * 100 : null);
  const [x, y, to_x, to_y] = [action.x, action.y, action.to_x, action.to_y].map(share);
  if ((action.type === "tap" || action.type === "type_at") && x !== null && y !== null) return dot(x, y, "touch");
  if (["swipe", "drag"].includes(action.type) && [x, y, to_x, to_y].every((each) => each !== null)) {
    for (const name of ["edge", "ink"]) drawn.append(svg("line", { class: name, x1: x, y1: y, x2: to_x, y2: to_y }));
    return [drawn, dot(x, y, "from"), dot(to_x, to_y, "to")];
  }
  return null;
}

function dot(x, y, kind) {
  return el("span", { class: `dot-mark ${kind}`, "aria-hidden": "true", style: { left: `${x}%`, top: `${y}%` } });
}

// Probabilities of the touch grid's cells, on a logarithmic scale above what chance would give each.
export function heat(cells, label) {
  const rows = cells.length;
  const columns = rows ? cells[0].length : 0;
  const even = 1 / (rows * columns);
  const drawn = svg("svg", { class: "heat", viewBox: `0 0 ${columns} ${rows}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  cells.forEach((row, y) =>
    row.forEach((share, x) => {
      const opacity = 0.85 * Math.min(1, Math.log(share / even) / Math.log(1 / even / 4));
      if (opacity > 0.04) drawn.append(svg("rect", { x, y, width: 1.02, height: 1.02, "fill-opacity": opacity.toFixed(3) }));
    }),
  );
  return drawn;
}

// Draws the places of ``after`` that differ from ``before`` on a canvas over it; calls back with their share.
export function difference(before, after, told) {
  const canvas = el("canvas", { class: "changed", "aria-hidden": "true" });
  Promise.all([before.decode(), after.decode()])
    .then(() => told(draw(canvas, before, after)))
    .catch(() => told(null));
  return canvas;
}

function draw(canvas, before, after) {
  const [width, height] = [after.naturalWidth, after.naturalHeight];
  canvas.width = width;
  canvas.height = height;
  const pixels = (shot) => {
    const sheet = el("canvas", { width, height }).getContext("2d", { willReadFrequently: true });
    sheet.drawImage(shot, 0, 0, width, height);
    return sheet.getImageData(0, 0, width, height).data;
  };
  const [old, now] = [pixels(before), pixels(after)];
  const sheet = canvas.getContext("2d");
  const drawn = sheet.createImageData(width, height);
  let changed = 0;
  for (let at = 0; at < now.length; at += 4) {
    const apart = Math.max(Math.abs(now[at] - old[at]), Math.abs(now[at + 1] - old[at + 1]), Math.abs(now[at + 2] - old[at + 2]));
    if (apart > CHANGED) {
      changed++;
      drawn.data.set([229, 39, 123, 150], at);
    } else drawn.data.set([255, 255, 255, 140], at);
  }
  sheet.putImageData(drawn, 0, 0);
  return changed / (width * height);
}
