// Tasks over iterations: when was which task learned?

import { el, hint, percent, renew, show, svg } from "./dom.js";
import { go, link } from "./route.js";

const BINS = 60;
const LEARNED = 0.8;

export function tasks(place, state) {
  const names = [...state.runs.keys()];
  const run = names.includes(state.route.query.run) ? state.route.query.run : names[0];
  const choose = (event) => go("tasks", { run: event.target.value });
  const select = el("select", { id: "run", on: { change: choose } }, names.map((name) => el("option", { value: name }, name)));
  select.value = run;
  const body = el("tbody");
  const head = ["task", "episodes", "first success", "learned at", "success now", "iterations"].map((title) => el("th", { scope: "col" }, title));
  show(
    place,
    el("h1", {}, "Tasks"),
    names.length > 1 ? el("p", { class: "row" }, el("label", { for: "run" }, "Run"), select) : null,
    el("p", { class: "hint" }, `A task counts as learned from the first iterations on in which ${percent(LEARNED)} of its episodes succeed. Click a cell for its episodes.`),
    el("div", { class: "wide card", tabindex: 0, role: "region", "aria-label": "tasks" }, el("table", { class: "tasks" }, el("thead", {}, el("tr", {}, head)), body)),
  );
  const none = el("tr", {}, el("td", { colspan: head.length }, "No training episode has landed yet."));
  state.live = () => {
    const rows = summed(state.index(run)).map((row) => line(row, run));
    renew(body, rows.length ? rows : none);
  };
  state.live();
}

function summed(index) {
  const trained = index.known.purpose.get("train");
  const found = new Map();
  let last = 0;
  for (let row = 0; row < index.size; row++) if (index.codes.purpose[row] === trained) last = Math.max(last, index.numbers.iteration[row]);
  const width = Math.ceil((last + 1) / BINS);
  const count = Math.ceil((last + 1) / width);
  for (let row = 0; row < index.size; row++) {
    if (index.codes.purpose[row] !== trained) continue;
    const task = index.codes.task[row];
    if (!found.has(task)) found.set(task, { name: index.words.task[task], width, all: new Uint32Array(count), won: new Uint32Array(count), first: null });
    const entry = found.get(task);
    const bin = Math.floor(index.numbers.iteration[row] / width);
    entry.all[bin]++;
    entry.won[bin] += index.flags.success[row];
    if (index.flags.success[row]) entry.first = Math.min(entry.first ?? Infinity, index.numbers.iteration[row]);
  }
  const rows = [...found.values()];
  rows.forEach((entry) => (entry.learned = learnedAt(entry)));
  return rows.sort((a, b) => (a.learned ?? Infinity) - (b.learned ?? Infinity) || (a.name < b.name ? -1 : 1));
}

function learnedAt(entry) {
  const bin = entry.all.findIndex((all, place) => all > 0 && entry.won[place] / all >= LEARNED);
  return bin < 0 ? null : bin * entry.width;
}

function line(entry, run) {
  const all = entry.all.reduce((sum, each) => sum + each, 0);
  const newest = entry.all.findLastIndex((each) => each > 0);
  const now = entry.won[newest] / entry.all[newest];
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, el("a", { href: link("episodes", { run, task: entry.name }) }, entry.name)),
    el("td", {}, String(all)),
    el("td", {}, entry.first === null ? "never" : String(entry.first)),
    el("td", { class: "learned" }, entry.learned === null ? "not yet" : `iteration ${entry.learned}`),
    el("td", {}, percent(now)),
    el("td", { class: "cells" }, cells(entry, run)),
  );
}

function cells(entry, run) {
  const count = entry.all.length;
  const drawn = svg("svg", { viewBox: `0 0 ${count} 1`, preserveAspectRatio: "none", role: "img", "aria-label": `success of ${entry.name} over iterations` });
  entry.all.forEach((all, bin) => {
    if (!all) return;
    const share = entry.won[bin] / all;
    const [from, to] = [bin * entry.width, (bin + 1) * entry.width - 1];
    const where = from === to ? `iteration ${from}` : `iterations ${from} to ${to}`;
    const on = {
      mousemove: (event) => hint(`${entry.name}, ${where}\n${entry.won[bin]} of ${all} succeeded`, event),
      mouseleave: () => hint(""),
      click: () => (hint(""), go("episodes", { run, task: entry.name, iteration_from: from, iteration_to: to, purpose: "train" })),
    };
    drawn.append(svg("rect", { class: "cell-none", x: bin, y: 0, width: 1, height: 1 }), svg("rect", { class: "cell-won", x: bin, y: 0, width: 1, height: 1, "fill-opacity": share, on }));
  });
  return drawn;
}
