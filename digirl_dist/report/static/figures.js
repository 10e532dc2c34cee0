// What the lines of metrics.jsonl become as curves: their groups, their axis, and their mean over seeds.

import { lineChart, stackedBars } from "./charts.js";
import { el, table } from "./dom.js";
import { go } from "./route.js";

const RESULTS = ["success_rate", "reward_mean", "reward_max", "steps_mean"];
const TIME = ["iteration_s", "collect_s", "update_s", "overhead_s", "push_s", "emulator_busy", "collect_busy", "in_time_s_mean", "carried_in_s_mean"];
const FAULTS = ["episodes_retried", "workers_lost", "set_aside", "cancelled", "carried_over", "carried_in", "carried_in_steps_mean", "in_time_steps_mean", "push_bytes", "pull_bytes"];
const NO_CURVE = ["iteration", "time", "policy_version", "episodes"];
const ORDER = [/loss/, /entropy/, /kl/, /grad/, /stale/, /clip|outside/];
const TITLES = table({ success_rate: "success rate", reward_mean: "mean reward", reward_max: "largest reward", steps_mean: "mean steps", emulator_busy: "emulators busy since the collection before", collect_busy: "emulators busy while collecting", iteration_s: "seconds per iteration", collect_s: "seconds of collection", update_s: "seconds of the update", overhead_s: "seconds of neither", push_s: "seconds of the push" });
const SHARES = ["success_rate", "emulator_busy", "collect_busy"];
const APART = /^(seed|save_path|logger_project|trainer\.device)$/;
const COLOURS = 20;
const POINTS = 300;
export const AXES = table({ iteration: "iteration", episodes: "episodes", hours: "hours" });

export const title = (name) => TITLES[name] || name.replaceAll("_", " ");
export const colour = (place) => `r${(place % COLOURS) + 1}`;
export const sum = (values) => values.reduce((all, each) => all + each, 0);
const numbers = (spent) => Object.values(spent || {}).filter((each) => typeof each === "number");

// Slot-hours: how long all emulators were there until the last collection ended, whatever they did. Evaluations are none of it.
export function slotHours(run) {
  const spent = run.metrics.map((line) => sum(numbers(line.slot_seconds)));
  return spent.some(Boolean) ? sum(spent) / 3600 : null;
}

export function hours(run) {
  const spent = sum(run.metrics.map((line) => line.iteration_s || 0));
  return spent ? spent / 3600 : null;
}

export const known = (run, name) => run.metrics.map((line) => line[name]).filter((value) => typeof value === "number");

// Whether an episode of the run can be a success or a failure at all.
export function tellsSuccess(run, index) {
  if (!run || known(run, "success_rate").length) return true;
  const { config } = run;
  if (config["emulator.name"] !== "gymnasium" || (config["emulator.success_reward"] ?? null) !== null || (config.success ?? "environment") !== "environment") return true;
  const flags = index ? index.flags.success.subarray(0, index.size) : [];
  return flags.includes(1) && flags.includes(0);
}

// Runs that differ in nothing but their seeds are one line with a band; two of one seed are two lines.
export function bySeed(runs) {
  const groups = [];
  for (const run of runs) {
    const chosen = Object.entries(run.config).filter(([key]) => !APART.test(key)).sort();
    const same = chosen.length ? JSON.stringify(chosen) : run.name;
    const group = groups.find((each) => each.same === same && !each.runs.some((other) => other.config.seed === run.config.seed));
    if (group) group.runs.push(run);
    else groups.push({ same, runs: [run] });
  }
  return groups.map(({ runs: each }) => ({ runs: each, name: each.length > 1 ? `${each[0].name} and ${each.length - 1} more seeds` : each[0].name }));
}

// The curves of a group of runs, in sections: how = {axis, smooth}.
export function sections(groups, how) {
  const runs = groups.flatMap((group) => group.runs);
  const names = new Set(runs.flatMap((run) => run.metrics.slice(-3)).flatMap((line) => Object.keys(line).filter((name) => typeof line[name] === "number")));
  const own = [...RESULTS, ...TIME, ...FAULTS, ...NO_CURVE];
  const rank = (name) => (ORDER.findIndex((each) => each.test(name)) + ORDER.length + 1) % (ORDER.length + 1);
  const learning = [...names].filter((name) => !own.includes(name)).sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
  const happened = (name) => runs.some((run) => known(run, name).some((value) => value !== 0));
  const time = runs.length === 1 ? [() => parts(runs[0], "iteration"), () => parts(runs[0], "slots")] : [];
  const section = (name, found, more = []) => {
    const charts = [...more, ...found.filter((each) => names.has(each)).map((each) => () => chart(each, groups, how))];
    return charts.length ? el("section", {}, el("h2", {}, name), el("div", { class: "charts" }, charts.map(lazy))) : null;
  };
  return [section("Results", RESULTS), section("Learning", learning), section("Time", TIME, time), section("Losses and traffic", FAULTS.filter(happened))];
}

const waiting = new WeakMap();
const watcher = new IntersectionObserver((seen) => {
  for (const { target, isIntersecting } of seen) if (isIntersecting) draw(target);
}, { rootMargin: "400px" });

function draw(place) {
  watcher.unobserve(place);
  const made = waiting.get(place)?.();
  if (made) place.replaceWith(made);
  else place.remove();
}

// A chart is drawn once its place comes near the screen.
function lazy(make) {
  const place = el("div", { class: "chart waits" });
  waiting.set(place, make);
  watcher.observe(place);
  return place;
}

function chart(name, groups, how) {
  const lines = groups.map((group) => ({ name: group.name, run: group.runs[0].name, colour: group.colour, ...points(group.runs, name, how) }));
  const pick = (point, line) => go("episodes", { run: line.run, iteration_from: point.at, iteration_to: point.at });
  return lineChart({ title: title(name), lines, bounds: SHARES.includes(name) ? [0, 1] : undefined, x_title: AXES[how.axis], pick });
}

// What checkpoints came to on the test tasks.
export function evaluations(groups) {
  if (!groups.some((group) => group.runs.some((run) => run.evaluations.length))) return null;
  const chart = (name) => {
    const lines = groups.map((group) => ({ name: group.name, run: group.runs[0].name, of: group.runs[0], colour: group.colour, ...points(group.runs, name, {}, (run) => run.evaluations, "checkpoint") }));
    lines.forEach((line) => line.points.forEach((point) => (point.x = point.at)));
    const pick = (point, line) => go("episodes", { run: line.run, ...episodesOf(line.of, point.at) });
    return lines.some((line) => line.points.length) ? lineChart({ title: `${title(name)} on the test tasks`, lines, bounds: name === "success_rate" ? [0, 1] : undefined, x_title: "checkpoint", pick }) : null;
  };
  return el("section", {}, el("h2", {}, "Evaluations"), el("div", { class: "charts" }, ["success_rate", "reward_mean"].map(chart)));
}

// The filters that show the episodes of an evaluation: one while training has the checkpoint as its iteration.
function episodesOf(run, checkpoint) {
  const whileTraining = run.evaluations.some((line) => line.checkpoint === checkpoint && line.purpose === "evaluate");
  return whileTraining ? { purpose: "evaluate", iteration_from: checkpoint, iteration_to: checkpoint } : { purpose: "measure" };
}

// The mean of several runs, and the least and the greatest of them.
export function points(runs, name, { axis = "iteration", smooth = 0 } = {}, from = (run) => run.metrics, at = "iteration") {
  const found = new Map();
  for (const run of runs) {
    let [episodes, spent] = [0, 0];
    for (const line of from(run)) {
      episodes += line.episodes || 0;
      spent += line.iteration_s || 0;
      if (typeof line[name] !== "number" || typeof line[at] !== "number") continue;
      if (!found.has(line[at])) found.set(line[at], []);
      found.get(line[at]).push({ y: line[name], x: { iteration: line[at], episodes, hours: spent / 3600 }[axis] });
    }
  }
  const mean = (each) => sum(each) / each.length;
  const whole = [...found].sort((a, b) => a[0] - b[0]).map(([place, values]) => {
    const ys = values.map((value) => value.y);
    const point = { x: mean(values.map((value) => value.x)), y: mean(ys), at: place };
    return values.length > 1 ? { ...point, low: Math.min(...ys), high: Math.max(...ys) } : point;
  });
  whole.sort((a, b) => a.x - b.x);
  return smooth ? { points: thinned(smoothed(whole, smooth)), raw: thinned(whole) } : { points: thinned(whole) };
}

// An exponential moving average without the bias of its beginning.
function smoothed(whole, weight) {
  const last = { y: 0, low: 0, high: 0 };
  return whole.map((point, place) => {
    const made = { ...point };
    for (const name of ["y", "low", "high"]) {
      if (point[name] === undefined) continue;
      last[name] = weight * last[name] + (1 - weight) * point[name];
      made[name] = last[name] / (1 - weight ** (place + 1));
    }
    return made;
  });
}

function thinned(whole) {
  const step = Math.ceil(whole.length / POINTS);
  return step < 2 ? whole : whole.filter((_, place) => place % step === 0 || place === whole.length - 1);
}

// Where the seconds of the newest iterations went: of the iteration, or of all slots.
const ACTIVITIES = table({ step: ["steps", "c1"], policy: ["policy", "c2"], reset: ["resets", "c3"], boot: ["starts", "c6"], push: ["push", "c7"], update: ["host learns", "c8"], barrier: ["other slots", "c4"], speculation: ["duplicates", "c9"], faults: ["faults", "c5"], closed: ["out of service", "c10"], away: ["worker lost", "c11"] });

function parts(run, of) {
  const timed = run.metrics.filter((line) => typeof line.iteration_s === "number" && (of === "iteration" || line.slot_seconds)).slice(-60);
  if (!timed.length) return null;
  const part = (name, kind, value) => ({ name, colour: kind, values: timed.map((line) => Math.max(0, value(line) || 0)) });
  // A collection that overlaps with an update has of the iteration what the update leaves.
  const update = (line) => Math.min(line.update_s || 0, line.iteration_s);
  const collect = (line) => Math.min(line.collect_s || 0, line.iteration_s - update(line));
  const push = (line) => Math.min(line.push_s || 0, collect(line));
  const ofIteration = () => [
    part("episodes", "c1", (line) => collect(line) - push(line)),
    part("push", "c7", push),
    part("update", "c2", update),
    part("other", "c4", (line) => line.iteration_s - collect(line) - update(line)),
  ];
  const ofSlots = () => Object.entries(ACTIVITIES).map(([name, [words, kind]]) => part(words, kind, (line) => line.slot_seconds[name])).filter((each) => each.values.some(Boolean));
  return stackedBars({ title: of === "iteration" ? "where an iteration's seconds go" : "where the slots' seconds go", xs: timed.map((line) => line.iteration), parts: of === "iteration" ? ofIteration() : ofSlots() });
}
