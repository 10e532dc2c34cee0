// All runs: which is alive and which has failed, what each came to and what it cost, curves, and what they differ in.

import { el, percent, renew, seconds, short, show, sortable, sorted, walk } from "./dom.js";
import { bySeed, colour, evaluations, hours, known, sections, slotHours, sum } from "./figures.js";
import { link } from "./route.js";
import { algorithm, best, chip, controls, how, isLive, left_s, now, runPage } from "./run.js";

const COLUMNS = [["", ""], ["name", "run"], ["state", "state"], ["doing", "now, or how it ended"], ["algorithm", "algorithm"], ["success", "success"], ["best", "best"], ["episodes", "episodes"], ["hours", "hours"], ["slot_hours", "slot-hours of training"]];
const ORDER = ["failed", "interrupted", "running", "unknown", "finished"];
const OWN = ["save_path", "logger_project"]; // of each run, whatever it tries

export async function overview(place, state) {
  const names = [...state.runs.keys()];
  if (names.length === 1) return runPage(place, state, names[0]);
  const parts = Object.fromEntries(["table", "controls", "charts", "differences"].map((each) => [each, el("div")]));
  show(place, el("h1", {}, names.length ? `${names.length} runs` : "No runs"), Object.values(parts));
  const order = () => state.route.query.sort || "state";
  const change = (query) => {
    state.note(query);
    refresh();
  };
  let drawn = "";
  const refresh = () => {
    const runs = [...state.runs.values()];
    const shown = runs.filter((run) => !state.hidden.has(run.name));
    const groups = (how(state).bands ? bySeed(shown) : shown.map((run) => ({ name: run.name, runs: [run] }))).map((group, at) => ({ ...group, colour: colour(at) }));
    const colours = new Map(groups.flatMap((group) => group.runs.map((run) => [run.name, group.colour])));
    renew(parts.table, overviewTable(runs, colours, order(), change, state, refresh));
    const stamp = JSON.stringify([how(state), shown.map((run) => [run.name, run.size])]);
    if (stamp === drawn) return;
    drawn = stamp;
    show(parts.charts, shown.some((run) => run.metrics.length) ? sections(groups, how(state)) : el("p", { class: "hint" }, shown.length ? "No iteration is finished yet: curves begin with the first." : "No run is chosen."), evaluations(groups));
    show(parts.differences, differences(runs.filter((run) => !run.gone)), runs.flatMap((run) => run.notes.map((note) => el("p", { class: "note" }, `${run.name}: ${note}`))));
  };
  show(parts.controls, controls(state, change, true));
  state.keys = (event) => walk(place, "tbody th a", event);
  state.live = refresh;
  state.tick = () => [...state.runs.values()].some(isLive) && refresh();
  refresh();
}

function value(run, name) {
  if (name === "state") return ORDER.indexOf(run.gone ? "failed" : run.state);
  if (name === "success") return last(run);
  const of = { name: run.name, doing: run.doing, algorithm: algorithm(run), best: best(run), episodes: sum(known(run, "episodes")), hours: hours(run), slot_hours: slotHours(run) };
  return of[name];
}

// The newest success rate, or mean reward where nothing is a success.
function last(run) {
  const rates = known(run, "success_rate");
  const values = rates.length ? rates : known(run, "reward_mean");
  return values.length ? values[values.length - 1] : null;
}

function overviewTable(runs, colours, order, change, state, refresh) {
  const rows = sorted(sorted(runs, "name", value), order, value).map((run) => {
    const toggle = () => {
      if (!state.hidden.delete(run.name)) state.hidden.add(run.name);
      refresh();
    };
    const box = el("input", { type: "checkbox", "aria-label": `curves of ${run.name}`, on: { change: toggle } });
    box.checked = !state.hidden.has(run.name);
    const rated = known(run, "success_rate").length > 0;
    const rate = (each) => (rated ? percent(each) : short(each));
    const left = left_s(run);
    const ended = run.since === null ? "" : ` ${seconds(Math.max(0, now(run) - run.since))} ago`;
    const doing = run.state === "running" ? `${run.doing}${left === null ? "" : `; about ${seconds(left)} left`}` : `${run.words}${ended}`;
    const figure = (each) => (each === null ? "–" : short(each, 2));
    return el(
      "tr",
      {},
      el("td", {}, el("label", { class: "key-row" }, box, el("span", { class: `swatch ${colours.get(run.name) || ""}` }))),
      el("th", { scope: "row" }, el("a", { href: link("run", {}, run.name) }, run.name)),
      el("td", {}, chip(run)),
      el("td", { class: "doing" }, doing),
      el("td", {}, algorithm(run)),
      el("td", {}, rate(last(run))),
      el("td", {}, rate(best(run))),
      el("td", {}, `${short(sum(known(run, "episodes")))} in ${run.metrics.length} iteration${run.metrics.length === 1 ? "" : "s"}`),
      el("td", {}, figure(hours(run))),
      el("td", {}, figure(slotHours(run))),
    );
  });
  return el("div", { class: "wide card", tabindex: 0, role: "region", "aria-label": "runs" }, el("table", { class: "runs-table" }, sortable(COLUMNS, order, (name) => change({ sort: name === "state" ? "" : name })), el("tbody", {}, rows)));
}

// What somebody set in at least one of the runs, where the runs differ.
function differences(runs) {
  if (runs.length < 2) return null;
  const keys = [...new Set(runs.flatMap((run) => run.given))].filter((key) => !OWN.includes(key)).sort();
  const text = (run, key) => (key in run.config ? JSON.stringify(run.config[key]) : "–");
  const differing = keys.filter((key) => new Set(runs.map((run) => text(run, key))).size > 1);
  const head = el("tr", {}, el("th", { scope: "col" }, "setting"), runs.map((run) => el("th", { scope: "col" }, run.name)));
  const body = differing.map((key) => el("tr", {}, el("th", { scope: "row" }, key), runs.map((run) => el("td", {}, text(run, key)))));
  const shown = differing.length ? el("div", { class: "wide card", tabindex: 0, role: "region", "aria-label": "differences" }, el("table", {}, el("thead", {}, head), el("tbody", {}, body))) : el("p", { class: "hint" }, "The same settings were chosen for all of them.");
  return el("section", { id: "differences" }, el("h2", {}, "What their settings differ in"), shown);
}
