// Runs side by side: curves with bands over seeds, and what their configurations differ in.

import { lineChart, stackedBars } from "./charts.js";
import { el, percent, seconds, short, show, table } from "./dom.js";
import { go } from "./route.js";

const FIRST = ["success_rate", "reward_mean", "emulator_busy"];
const TITLES = table({ success_rate: "success rate", reward_mean: "mean reward", emulator_busy: "emulators busy, of all time", iteration_s: "seconds per iteration", steps_mean: "mean steps" });
const SHARES = ["success_rate", "emulator_busy", "collect_busy"];
const APART = /^(seed|save_path|logger_project|trainer\.device)$/;

export function overview(place, state) {
  const runs = [...state.runs.values()];
  const shown = runs.filter((run) => !state.hidden.has(run.name));
  const groups = state.bands ? bySeed(shown) : shown.map((run) => ({ name: run.name, runs: [run] }));
  groups.forEach((group, place_) => (group.colour = `c${(place_ % 6) + 1}`));
  const colours = new Map(groups.flatMap((group) => group.runs.map((run) => [run.name, group.colour])));
  show(
    place,
    el("h1", {}, runs.length === 1 ? runs[0].name : `${runs.length} runs`),
    runs.length === 1 ? tiles(runs[0]) : legend(runs, colours, state),
    numbersOf(shown).size ? curves(shown, groups, state) : el("p", { class: "hint" }, shown.length ? "No iteration is finished yet: curves begin with the first." : "No run is chosen."),
    evaluations(groups),
    differences(runs.filter((run) => !run.gone)),
    ...runs.map((run) => el("p", { class: run.failed ? "note" : "hint" }, `${run.name}: ${run.state}`)),
    ...runs.flatMap((run) => run.notes.map((note) => el("p", { class: "note" }, `${run.name}: ${note}`))),
  );
}

function curves(shown, groups, state) {
  return [el("div", { class: "charts" }, figuresOf(shown, state.figure).map((name) => chart(name, groups)), shown.length === 1 ? time(shown[0]) : null), more(shown, state)];
}

function chart(name, groups) {
  const lines = groups.map((group) => ({ name: group.name, run: group.runs[0].name, colour: group.colour, points: pointsOf(group.runs, name) }));
  const pick = (iteration, line) => go("episodes", { run: line.run, iteration_from: iteration, iteration_to: iteration });
  return lineChart({ title: TITLES[name] || name.replaceAll("_", " "), lines, bounds: SHARES.includes(name) ? [0, 1] : undefined, pick });
}

// Where the seconds of the newest iterations went.
function time(run) {
  const timed = run.metrics.filter((line) => typeof line.iteration_s === "number").slice(-60);
  if (!timed.length) return null;
  const part = (name, colour, of) => ({ name, colour, values: timed.map((line) => Math.max(0, of(line) || 0)) });
  const parts = [
    part("episodes", "c1", (line) => line.collect_s - (line.push_s || 0)),
    part("push", "c7", (line) => line.push_s),
    part("update", "c2", (line) => line.update_s),
    part("other", "c4", (line) => line.iteration_s - (line.collect_s || 0) - (line.update_s || 0)),
  ];
  return stackedBars({ title: "seconds of an iteration", xs: timed.map((line) => line.iteration), parts });
}

// The mean of several runs, and the least and the greatest of them.
function pointsOf(runs, name, from = (run) => run.metrics, at = "iteration") {
  const found = new Map();
  for (const run of runs) {
    for (const line of from(run)) {
      if (typeof line[name] !== "number" || typeof line[at] !== "number") continue;
      if (!found.has(line[at])) found.set(line[at], []);
      found.get(line[at]).push(line[name]);
    }
  }
  const points = [...found].sort((a, b) => a[0] - b[0]).map(([x, values]) => {
    const y = values.reduce((sum, value) => sum + value, 0) / values.length;
    return values.length > 1 ? { x, y, low: Math.min(...values), high: Math.max(...values) } : { x, y };
  });
  return thinned(points);
}

function thinned(points, most = 400) {
  const step = Math.ceil(points.length / most);
  return step < 2 ? points : points.filter((_, place) => place % step === 0);
}

function bySeed(runs) {
  const groups = new Map();
  for (const run of runs) {
    const same = JSON.stringify(Object.entries(run.config).filter(([key]) => !APART.test(key)).sort());
    if (!groups.has(same)) groups.set(same, []);
    groups.get(same).push(run);
  }
  return [...groups.values()].map((each) => ({ runs: each, name: each.length > 1 ? `${each[0].name} and ${each.length - 1} more seeds` : each[0].name }));
}

function figuresOf(runs, chosen) {
  const known = numbersOf(runs);
  return [...FIRST.filter((name) => known.has(name)), ...(chosen && known.has(chosen) && !FIRST.includes(chosen) ? [chosen] : [])];
}

function numbersOf(runs) {
  const names = new Set();
  for (const run of runs) for (const line of run.metrics.slice(-3)) for (const [name, value] of Object.entries(line)) if (typeof value === "number") names.add(name);
  for (const name of ["iteration", "time"]) names.delete(name);
  return names;
}

function more(runs, state) {
  const names = [...numbersOf(runs)].filter((name) => !FIRST.includes(name)).sort();
  const change = (event) => go("runs", { ...state.route.query, figure: event.target.value });
  const options = ["", ...names].map((name) => {
    const option = el("option", { value: name }, name ? name.replaceAll("_", " ") : "none");
    option.selected = name === (state.figure || "");
    return option;
  });
  return el("p", { class: "row" }, el("label", { for: "figure" }, "One more curve"), el("select", { id: "figure", on: { change } }, options));
}

function evaluations(groups) {
  if (!groups.some((group) => group.runs.some((run) => run.evaluations.length))) return null;
  const chart = (name) => {
    const lines = groups.map((group) => ({ name: group.name, run: group.runs[0].name, of: group.runs[0], colour: group.colour, points: pointsOf(group.runs, name, (run) => run.evaluations, "checkpoint") }));
    const pick = (checkpoint, line) => go("episodes", { run: line.run, ...episodesOf(line.of, checkpoint) });
    return lines.some((line) => line.points.length) ? lineChart({ title: `${TITLES[name]} on the test tasks`, lines, bounds: SHARES.includes(name) ? [0, 1] : undefined, x_title: "checkpoint", pick }) : null;
  };
  return el("section", {}, el("h2", {}, "Evaluations"), el("div", { class: "charts" }, ["success_rate", "reward_mean"].map(chart)));
}

// The filters that show the episodes of an evaluation: one while training has the checkpoint as its iteration.
function episodesOf(run, checkpoint) {
  const whileTraining = run.evaluations.some((line) => line.checkpoint === checkpoint && line.purpose === "evaluate");
  return whileTraining ? { purpose: "evaluate", iteration_from: checkpoint, iteration_to: checkpoint } : { purpose: "measure" };
}

function tiles(run) {
  const last = run.metrics[run.metrics.length - 1] || {};
  const spent = run.metrics.reduce((sum, line) => sum + (line.iteration_s || 0), 0);
  const facts = [
    ["iterations", `${run.metrics.length}${run.config.train_iterations ? ` of ${run.config.train_iterations}` : ""}`],
    ["success rate", percent(last.success_rate)],
    ["mean reward", short(last.reward_mean)],
    ["episodes", short(run.metrics.reduce((sum, line) => sum + (line.episodes || 0), 0))],
    ["time", spent ? seconds(spent) : "–"],
    ["algorithm", run.config["algorithm.entry_point"] || run.config.train_algorithm || "–"],
  ];
  return el("dl", { class: "tiles" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value)))));
}

function legend(runs, colours, state) {
  const entries = runs.map((run) => {
    const toggle = () => {
      if (!state.hidden.delete(run.name)) state.hidden.add(run.name);
      state.redraw();
    };
    const box = el("input", { type: "checkbox", on: { change: toggle } });
    box.checked = !state.hidden.has(run.name);
    const last = run.metrics[run.metrics.length - 1] || {};
    return el("label", { class: "key-row" }, box, el("span", { class: `swatch ${colours.get(run.name) || ""}` }), el("b", {}, run.name), el("span", { class: "soft" }, ` ${run.metrics.length} iterations, success ${percent(last.success_rate)}`));
  });
  const bands = el("input", { type: "checkbox", on: { change: (event) => ((state.bands = event.target.checked), state.redraw()) } });
  bands.checked = state.bands;
  return el("div", { class: "legend card" }, entries, el("label", { class: "key-row apart" }, bands, "bands over seeds"));
}

function differences(runs) {
  if (runs.length < 2) return runs.length ? configuration(runs[0]) : null;
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.config)))].sort();
  const text = (run, key) => (key in run.config ? JSON.stringify(run.config[key]) : "–");
  const differing = keys.filter((key) => new Set(runs.map((run) => text(run, key))).size > 1);
  const head = el("tr", {}, el("th", { scope: "col" }, "setting"), runs.map((run) => el("th", { scope: "col" }, run.name)));
  const body = differing.map((key) => el("tr", {}, el("th", { scope: "row" }, key), runs.map((run) => el("td", {}, text(run, key)))));
  const shown = differing.length ? el("div", { class: "wide card", tabindex: 0, role: "region", "aria-label": "differences" }, el("table", {}, el("thead", {}, head), el("tbody", {}, body))) : el("p", { class: "hint" }, "They have the same configuration.");
  return el("section", { id: "differences" }, el("h2", {}, "Differences of their configurations"), shown);
}

function configuration(run) {
  const rows = Object.entries(run.config).map(([key, value]) => el("tr", {}, el("th", { scope: "row" }, key), el("td", {}, JSON.stringify(value))));
  return el("details", { class: "card" }, el("summary", {}, "Configuration"), el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "configuration" }, el("table", {}, el("tbody", {}, rows))));
}
