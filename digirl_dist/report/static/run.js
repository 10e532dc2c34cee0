// One run: is it alive, what does it do, what fails and since when; its curves, its last events, what was set.

import { lastEvents } from "./events.js";
import { bySeed, colour, evaluations, hours, known, sections, slotHours, sum } from "./figures.js";
import { copyable, el, percent, pythonText, renew, seconds, shellWord, short, show, when } from "./dom.js";
import { link } from "./route.js";
import * as source from "./source.js";

const LATE = 0.5; // of its limit: a wait that is worth a line
const MEDIAN_OF = 5;
const RECENT_S = 600;

export const now = (run) => run.written ?? Date.now() / 1000;
export const isLive = (run) => run.state === "running" && !source.isBundle;
export const algorithm = (run) => [run.config["algorithm.entry_point"], run.config.train_algorithm].find((each) => typeof each === "string") ?? "–";

export function chip(run) {
  const word = run.gone ? "gone" : run.state;
  const kind = { running: "live-now", finished: "good", interrupted: "paused", failed: "bad", gone: "bad" }[word] || "unknown";
  return el("span", { class: `badge ${kind}` }, word === "unknown" ? "no status" : word);
}

// Iterations that are finished: of a long run a page has the newest alone.
export const done = (run) => Math.max(0, ...run.metrics.slice(-1).map((line) => line.iteration + 1));

// Seconds until the last iteration ends, by the median of the last ones; null where that is not known.
export function left_s(run) {
  const wanted = run.config.train_iterations;
  const took = known(run, "iteration_s").slice(-MEDIAN_OF).sort((a, b) => a - b);
  if (run.state !== "running" || typeof wanted !== "number" || !took.length) return null;
  const passed = Math.max(0, now(run) - (run.metrics[run.metrics.length - 1].time || now(run)));
  return Math.max(0, took[took.length >> 1] * (wanted - done(run)) - passed);
}

function sentence(run) {
  const ago = run.since === null ? "" : seconds(Math.max(0, now(run) - run.since));
  if (run.gone) return "The folder is not there any more: was it moved or deleted?";
  if (run.state === "running") {
    const left = left_s(run);
    const more = left === null ? "" : `; about ${seconds(left)} left`;
    return `${run.doing || "It has not said yet what it does"}${ago ? `, for ${ago}` : ""}${more}`;
  }
  if (run.state === "unknown") return "It left no status: it is older than this version, or never began.";
  return `${run.words}${ago ? `, ${ago} ago` : ""}`;
}

// What the workers of a live run wait for: the lost and the late ones, with since when.
function troubles(status) {
  const workers = Object.entries(status.workers || {});
  if (!workers.length) return null;
  const since = (at) => seconds(Math.max(0, status.time - at));
  const lines = workers.flatMap(([name, worker]) => {
    const late = (worker.slots || []).filter((slot) => slot && slot.limit_s && slot.for_s > LATE * slot.limit_s);
    if (worker.lost) return [[name, `lost for ${since(worker.since)}: ${worker.last_trouble || worker.doing}`]];
    if (worker.heard_at === null) return [[name, `${worker.doing}, for ${since(worker.since)}`]];
    if (late.length) return [[name, `${late.length} of ${worker.slots.length} slots are slow: ${late[0].activity} for ${seconds(late[0].for_s)} of at most ${seconds(late[0].limit_s)}`]];
    return worker.troubled_at && status.time - worker.troubled_at < RECENT_S ? [[name, `${since(worker.troubled_at)} ago: ${worker.last_trouble}`]] : [];
  });
  const at_work = workers.filter(([, worker]) => !worker.lost && (worker.slots || []).some((slot) => busy(slot))).length;
  return { said: `${at_work} of ${workers.length} workers run episodes.`, lines };
}

const FREE = ["barrier", "update", "push", "boot", "closed"];
export const busy = (slot) => !FREE.includes(String(slot?.activity).split(" ")[0]);

function state_card(run, status) {
  const found = run.state === "running" ? troubles(status) : null;
  const lines = found?.lines.slice(0, 6).map(([name, text]) => el("li", {}, el("a", { href: link("events", { run: run.name, worker: name }) }, name), ` ${text}`));
  return el(
    "section",
    { class: `card state is-${run.state}`, "aria-label": "state" },
    el("p", { class: "lead" }, chip(run), el("span", {}, sentence(run))),
    run.state === "interrupted" || run.state === "failed" ? el("p", { class: "hint" }, "The same command continues it where it stopped.") : null,
    found ? el("p", { class: "hint" }, found.said) : null,
    lines?.length ? el("ul", {}, lines) : null,
    run.notes.map((note) => el("p", { class: "note" }, note)),
  );
}

export function best(run) {
  const rates = known(run, "success_rate");
  const values = rates.length ? rates : known(run, "reward_mean");
  return values.length ? Math.max(...values) : null;
}

function tiles(run) {
  const last = run.metrics[run.metrics.length - 1] || {};
  const rated = known(run, "success_rate").length > 0;
  const [worked, slots] = [hours(run), slotHours(run)];
  const facts = [
    ["iterations", `${done(run)}${typeof run.config.train_iterations === "number" ? ` of ${run.config.train_iterations}` : ""}`],
    ...(rated ? [["success rate", percent(last.success_rate)], ["best success rate", percent(best(run))]] : []),
    ["mean reward", short(last.reward_mean)],
    ...(rated ? [] : [["best mean reward", short(best(run))]]),
    ["episodes", short(sum(known(run, "episodes")))],
    ["time", worked === null ? "–" : seconds(worked * 3600)],
    ["slot time of training", slots === null ? "–" : seconds(slots * 3600)],
    ["algorithm", algorithm(run)],
  ];
  return el("dl", { class: "tiles" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value)))));
}

// The lines with which a person goes on from here.
function lines(run) {
  const folder = shellWord(run.folder);
  return el(
    "details",
    { class: "card" },
    el("summary", {}, "Lines to copy: why, continue from here, open in Python"),
    copyable("What it waits for, on the terminal", `digirl-dist why ${folder}`),
    copyable("Run it again, into another folder", `digirl-dist run --config-path ${folder} --config-name config save_path=runs/again`),
    copyable("Open in Python", `from digirl_dist import Run\n\nrun = Run(${pythonText(run.folder)})\nrun.metrics(), run.episodes().to_pandas()`),
  );
}

function chosen(run) {
  const text = (key) => JSON.stringify(run.config[key] ?? null);
  const table = (keys) => el("table", {}, el("tbody", {}, keys.map((key) => el("tr", {}, el("th", { scope: "row" }, key), el("td", {}, text(key))))));
  const wide = (name, keys) => el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": name }, table(keys));
  return [
    run.given.length ? el("details", { class: "card", id: "given" }, el("summary", {}, `Settings that are not the defaults (${run.given.length})`), wide("settings that are not the defaults", run.given)) : null,
    el("details", { class: "card" }, el("summary", {}, "The whole configuration"), wide("configuration", Object.keys(run.config))),
  ];
}

// How curves are drawn, in the address: axis, smoothing, bands.
export function how(state) {
  const { axis, smooth, bands } = state.route.query;
  return { axis: ["episodes", "hours"].includes(axis) ? axis : "iteration", smooth: Math.min(0.98, Math.max(0, Number(smooth) || 0)), bands: bands !== "0" };
}

export function controls(state, change, withBands) {
  const now_ = how(state);
  const axis = el("select", { id: "axis", on: { change: (event) => change({ axis: event.target.value === "iteration" ? "" : event.target.value }) } }, ["iteration", "episodes", "hours"].map((name) => el("option", { value: name }, name)));
  axis.value = now_.axis;
  const smooth = el("input", { id: "smooth", type: "range", min: 0, max: 0.95, step: 0.05, on: { change: (event) => change({ smooth: Number(event.target.value) || "" }) } });
  smooth.value = now_.smooth;
  const bands = el("input", { type: "checkbox", on: { change: (event) => change({ bands: event.target.checked ? "" : "0" }) } });
  bands.checked = now_.bands;
  return el("p", { class: "row controls" }, el("label", { for: "axis" }, "Curves by"), axis, el("label", { for: "smooth" }, "Smoothing"), smooth, withBands ? el("label", { class: "key-row" }, bands, "one line with a band for runs that differ in their seed") : null);
}

export async function runPage(place, state, name = state.route.parts[0]) {
  const found = state.runs.get(name);
  if (!found) return show(place, el("h1", {}, "There is no such run"), el("a", { href: link("runs") }, "← all runs"));
  const parts = Object.fromEntries(["state", "tiles", "controls", "events", "charts", "more"].map((each) => [each, el("div")]));
  show(place, state.runs.size > 1 ? el("nav", { class: "crumbs", "aria-label": "run" }, el("a", { href: link("runs") }, "← all runs")) : null, el("h1", {}, name), Object.values(parts));
  let drawn = "";
  const curves = () => {
    const current = state.runs.get(name);
    const stamp = `${current.metrics.length} ${current.size} ${JSON.stringify(how(state))}`;
    if (stamp === drawn) return;
    drawn = stamp;
    const groups = bySeed([current]).map((group) => ({ ...group, colour: colour(0) }));
    show(parts.tiles, tiles(current));
    show(parts.charts, current.metrics.length ? sections(groups, how(state)) : el("p", { class: "hint" }, "No iteration is finished yet: curves begin with the first."), evaluations(groups));
  };
  const change = (query) => {
    state.note(query);
    curves();
  };
  show(parts.controls, controls(state, change, false));
  show(parts.more, lines(found), chosen(found));
  let told = { status: {}, events: [] };
  const fresh = async () => {
    const [status, timeline] = await Promise.all([source.status(name).catch(() => ({})), source.timeline(name).catch(() => ({ events: [] }))]);
    told = { status, events: timeline.events };
  };
  const refresh = () => {
    const current = state.runs.get(name);
    renew(parts.state, state_card(current, told.status));
    renew(parts.events, lastEvents(told.events, name));
    curves();
  };
  state.keys = state.runs.size > 1 ? (event) => event.key === "Escape" && (() => place.querySelector(".crumbs a").click()) : null;
  state.live = () => fresh().then(() => state.is(place) && refresh());
  state.tick = () => isLive(state.runs.get(name)) && state.live();
  refresh();
  await state.live();
}
