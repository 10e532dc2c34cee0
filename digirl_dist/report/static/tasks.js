// Tasks, the worst first: how well each goes now, how well it went at its best, and when it was learned.

import { el, hint, percent, renew, short, show, sortable, sorted, svg, walk } from "./dom.js";
import { tellsSuccess } from "./figures.js";
import { go, link } from "./route.js";

const BINS = 60;
const LEARNED = 0.8;
const WINDOW = 20; // episodes
const COLUMNS = [["name", "task"], ["episodes", "episodes"], ["now", "now"], ["best", "best"], ["change", "change from its best"], ["first", "first success"], ["learned", "learned at"], ["", "over iterations"]];
const OF_SUCCESS = ["first", "learned"];

export function tasks(place, state) {
  const names = [...state.runs.keys()];
  const run = names.includes(state.route.query.run) ? state.route.query.run : names[0];
  const choose = (event) => go("tasks", { run: event.target.value });
  const select = el("select", { id: "run", on: { change: choose } }, names.map((name) => el("option", { value: name }, name)));
  select.value = run;
  const hinted = el("p", { class: "hint" });
  const body = el("div");
  show(place, el("h1", {}, "Tasks"), names.length > 1 ? el("p", { class: "row" }, el("label", { for: "run" }, "Run"), select) : null, hinted, body);
  const order = () => state.route.query.sort || "now";
  const change = (sort) => {
    state.note({ run, sort });
    state.live();
  };
  state.live = () => {
    const index = state.index(run);
    const rated = tellsSuccess(state.runs.get(run), index);
    const rows = sorted(sorted(summed(index, rated), "name", (row, name) => row[name]), order(), (row, name) => row[name]);
    const columns = COLUMNS.filter(([name]) => rated || !OF_SUCCESS.includes(name));
    const none = el("tr", {}, el("td", { colspan: columns.length }, "No training episode has landed yet."));
    const what = rated ? `A task counts as learned from the first iterations on in which ${percent(LEARNED)} of its episodes succeed.` : "The figures are mean rewards: this environment tells no success.";
    hinted.textContent = `The worst first. “Now” are the last ${WINDOW} training episodes of a task, its best the ${WINDOW} that went best. ${what} Click a cell for its episodes.${index.told}`;
    renew(body, el("div", { class: "wide card", tabindex: 0, role: "region", "aria-label": "tasks" }, el("table", { class: "tasks" }, sortable(columns, order(), change), el("tbody", {}, rows.length ? rows.map((row) => line(row, run, rated)) : none))));
  };
  state.keys = (event) => walk(body, "tbody th a", event);
  state.live();
}

// One entry for each task of the training episodes; ``value`` of an episode is its success, or its reward.
function summed(index, rated) {
  const trained = index.known.purpose.get("train");
  const found = new Map();
  let last = 0;
  for (let row = 0; row < index.size; row++) if (index.codes.purpose[row] === trained) last = Math.max(last, index.numbers.iteration[row]);
  const width = Math.ceil((last + 1) / BINS);
  const count = Math.ceil((last + 1) / width);
  for (let row = 0; row < index.size; row++) {
    if (index.codes.purpose[row] !== trained) continue;
    const task = index.codes.task[row];
    if (!found.has(task)) found.set(task, { task: index.words.task[task], width, all: new Uint32Array(count), won: new Float64Array(count), values: [], first: null });
    const entry = found.get(task);
    const bin = Math.floor(index.numbers.iteration[row] / width);
    const value = rated ? index.flags.success[row] : index.numbers.reward[row];
    entry.name = index.word("instruction", row) || entry.task;
    entry.values.push(Number.isNaN(value) ? 0 : value);
    entry.all[bin]++;
    entry.won[bin] += Number.isNaN(value) ? 0 : value;
    if (index.flags.success[row]) entry.first = Math.min(entry.first ?? Infinity, index.numbers.iteration[row]);
  }
  return [...found.values()].map(rounded);
}

// Adds what is told of a task: its mean now and at its best, over windows of episodes.
function rounded(entry) {
  const { values } = entry;
  const size = Math.min(WINDOW, values.length);
  let inside = values.slice(0, size).reduce((all, each) => all + each, 0);
  let best = inside;
  for (let place = size; place < values.length; place++) {
    inside += values[place] - values[place - size];
    best = Math.max(best, inside);
  }
  const learned = entry.all.findIndex((all, place) => all > 0 && entry.won[place] / all >= LEARNED);
  return { ...entry, episodes: values.length, now: inside / size, best: best / size, change: (inside - best) / size, learned: learned < 0 ? null : learned * entry.width };
}

function line(entry, run, rated) {
  const shown = rated ? percent : short;
  const change = Math.abs(entry.change) < 1e-9 ? "–" : rated ? `−${Math.round(-100 * entry.change)} points` : short(entry.change);
  const of_success = rated ? [el("td", {}, entry.first === null ? "never" : String(entry.first)), el("td", { class: "learned" }, entry.learned === null ? "not yet" : `iteration ${entry.learned}`)] : [];
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, el("a", { href: link("episodes", { run, task: entry.task }), title: entry.task }, entry.name)),
    el("td", {}, short(entry.episodes)),
    el("td", {}, shown(entry.now)),
    el("td", {}, shown(entry.best)),
    el("td", { class: entry.change < -0.1 && rated ? "worse" : null }, change),
    of_success,
    el("td", { class: "cells" }, cells(entry, run, rated)),
  );
}

function cells(entry, run, rated) {
  const count = entry.all.length;
  const drawn = svg("svg", { viewBox: `0 0 ${count} 1`, preserveAspectRatio: "none", role: "img", "aria-label": `${rated ? "success" : "mean reward"} of ${entry.name} over iterations` });
  const means = [...entry.all].map((all, bin) => (all ? entry.won[bin] / all : null));
  const there = means.filter((each) => each !== null);
  const [low, high] = rated ? [0, 1] : [Math.min(...there), Math.max(...there)];
  means.forEach((mean, bin) => {
    if (mean === null) return;
    const share = high > low ? (mean - low) / (high - low) : 1;
    const [from, to] = [bin * entry.width, (bin + 1) * entry.width - 1];
    const where = from === to ? `iteration ${from}` : `iterations ${from} to ${to}`;
    const told = rated ? `${entry.won[bin]} of ${entry.all[bin]} succeeded` : `mean reward ${short(mean)} of ${entry.all[bin]} episodes`;
    const on = {
      mousemove: (event) => hint(`${entry.name}, ${where}\n${told}`, event),
      mouseleave: () => hint(""),
      click: () => (hint(""), go("episodes", { run, task: entry.task, iteration_from: from, iteration_to: to, purpose: "train" })),
    };
    drawn.append(svg("rect", { class: "cell-none", x: bin, y: 0, width: 1, height: 1 }), svg("rect", { class: "cell-won", x: bin, y: 0, width: 1, height: 1, "fill-opacity": share, on }));
  });
  return drawn;
}
