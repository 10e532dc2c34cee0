// Workers over time: where their seconds go, and what happened to them when.

import { el, hint, percent, renew, seconds, short, show, svg, table } from "./dom.js";
import { go, link } from "./route.js";
import { busy, isLive } from "./run.js";
import * as source from "./source.js";

const COLOURS = table({ step: "c1", policy: "c2", reset: "c3", boot: "c6", push: "c7", update: "c8", barrier: "c4", speculation: "c9", faults: "c5", closed: "c10", away: "c11" });
const TITLES = table({ step: "emulator steps", policy: "waiting for the action", reset: "resets", boot: "starts", push: "waiting for the push", update: "while the host learns", barrier: "waiting for other slots", speculation: "duplicates", faults: "lost with a fault", closed: "out of service", away: "worker lost" });
const LOST = ["faults", "closed", "away", "barrier", "push", "speculation"];
const EPISODES = ["step", "policy", "reset"]; // as emulator_busy counts
const MARKS = table({ worker_lost: ["bad", "lost"], worker_joined: ["good", "joined"], worker_added: ["good", "added"], worker_left: ["soft", "left"], pushed: ["note", "pushed"] });
const LITTLE = 0.1; // share of a worker's slot time
const WAITING = 0.3;
const WIDTH = 1000;
const LANE = 46;

export async function workers(place, state) {
  const names = [...state.runs.keys()];
  const run = names.includes(state.route.query.run) ? state.route.query.run : names[0];
  const choose = (event) => go("workers", { run: event.target.value });
  const select = el("select", { id: "run", on: { change: choose } }, names.map((name) => el("option", { value: name }, name)));
  select.value = run;
  const body = el("div");
  show(place, el("h1", {}, "Workers"), names.length > 1 ? el("p", { class: "row" }, el("label", { for: "run" }, "Run"), select) : null, body);
  const present = el("div");
  const refresh = async () => {
    const [found, status] = await Promise.all([source.timeline(run), source.status(run)]);
    if (!state.is(place)) return;
    renew(present, state.runs.get(run).state === "running" ? atPresent(status, run) : null);
    renew(body, told(found, run));
  };
  body.before(present);
  await refresh();
  if (!state.is(place)) return;
  state.live = () => refresh().catch(() => {}); // the next change asks again
  state.tick = () => isLive(state.runs.get(run)) && state.live();
}

const LATE = 0.5; // of its limit
const MOST_WORKERS = 200;
const SLOTS = 64;

// Who does what now: the lost workers first, then those with slow slots.
function atPresent(status, run) {
  const since = (at) => (at === null || at === undefined ? "–" : seconds(Math.max(0, status.time - at)));
  const late = (slot) => Boolean(slot?.limit_s) && slot.for_s > LATE * slot.limit_s;
  const rank = (worker) => (worker.lost ? 0 : worker.heard_at === null ? 1 : (worker.slots || []).some(late) ? 2 : 3);
  const found = Object.entries(status.workers || {}).sort(([a, left], [b, right]) => rank(left) - rank(right) || (a < b ? -1 : 1));
  if (!found.length) return null;
  const slot = (each, number, name) => el("a", { class: `slot ${late(each) ? "is-late" : busy(each) ? "is-busy" : ""}`, href: link("events", { run, worker: name, slot: number }), title: `slot ${number}: ${each?.activity}, for ${seconds(each?.for_s || 0)}${each?.limit_s ? ` of at most ${seconds(each.limit_s)}` : ""}` }, `${number} ${String(each?.activity ?? "").split(" ")[0]}`);
  const rows = found.slice(0, MOST_WORKERS).map(([name, worker]) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, el("a", { href: link("events", { run, worker: name }) }, name)),
      el("td", { class: worker.lost ? "worse" : null }, `${worker.doing}, for ${since(worker.since)}`),
      el("td", {}, since(worker.heard_at)),
      el("td", { class: "slots" }, (worker.slots || []).slice(0, SLOTS).map((each, number) => slot(each, number, name))),
      el("td", {}, worker.last_trouble ? `${since(worker.troubled_at)} ago: ${worker.last_trouble}` : "–"),
    ),
  );
  const head = ["worker", "now", "last heard", "slots", "last trouble"].map((title) => el("th", { scope: "col" }, title));
  const more = found.length > MOST_WORKERS ? el("p", { class: "hint" }, `and ${found.length - MOST_WORKERS} more`) : null;
  return el("section", {}, el("h2", {}, "Now"), el("div", { class: "wide card", tabindex: 0, role: "region", "aria-label": "workers now" }, el("table", { class: "workers-now" }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows))), more);
}

function told(found, run) {
  const totals = summed(found.iterations);
  if (!totals.length) return el("p", { class: "hint" }, "No worker data yet: it comes with the first finished iteration.");
  const notes = found.notes.map((note) => el("p", { class: "note" }, note));
  return [el("h2", {}, "All iterations"), notes, verdict(totals), legend(totals), lanes(found, totals, run), overall(totals, found.events, run)];
}

function summed(iterations) {
  const found = new Map();
  for (const line of iterations) {
    for (const [worker, spent] of Object.entries(line.slot_seconds_by_worker)) {
      if (!found.has(worker)) found.set(worker, { worker, spent: {}, all: 0, lost: 0 });
      const entry = found.get(worker);
      for (const [activity, each] of Object.entries(spent || {})) {
        if (typeof each !== "number" || !(activity in COLOURS)) continue;
        entry.spent[activity] = (entry.spent[activity] || 0) + each;
        entry.all += each;
        if (LOST.includes(activity)) entry.lost += each;
      }
    }
  }
  return [...found.values()].filter((entry) => entry.all > 0).sort((a, b) => b.lost / b.all - a.lost / a.all);
}

function verdict(totals) {
  const worst = totals[0];
  const [activity] = Object.entries(worst.spent).filter(([name]) => LOST.includes(name)).sort((a, b) => b[1] - a[1])[0] || ["nothing"];
  const reason = worst.lost ? `, mostly ${TITLES[activity]}` : "";
  const share = worst.lost / worst.all;
  const loss = `loses ${share < LITTLE ? "most, and little" : "the largest share of its slots' time"}: ${percent(share)}${reason}.`;
  const all = totals.reduce((sum, entry) => sum + entry.all, 0);
  const learns = totals.reduce((sum, entry) => sum + (entry.spent.update || 0), 0) / all;
  const waits = learns < WAITING ? "" : ` All wait for ${percent(learns)} of the time while the host learns: ahead=1 would use it.`;
  return el("p", { class: share < LITTLE ? "hint" : "note", id: "verdict" }, el("b", {}, worst.worker), ` ${loss}${waits}`);
}

function legend(totals) {
  const there = Object.keys(COLOURS).filter((name) => totals.some((entry) => entry.spent[name]));
  return el("p", { class: "keys" }, there.map((name) => el("span", { class: `key ${COLOURS[name]}` }, TITLES[name])));
}

function lanes({ iterations, events }, totals, run) {
  const ends = iterations.map((line) => line.time).filter((time) => typeof time === "number");
  const begin = Math.min(...iterations.map((line) => line.time - (line.iteration_s || 0)));
  const end = Math.max(...ends);
  const x = (time) => Math.min(WIDTH, Math.max(0, ((time - begin) / Math.max(1e-9, end - begin)) * WIDTH));
  return el("div", { class: "lanes card", tabindex: 0, role: "region", "aria-label": "timeline" }, totals.map((entry) => lane(entry.worker, iterations, events, x, run)), el("p", { class: "axis-row" }, el("span", {}, new Date(begin * 1000).toLocaleString("en-GB")), el("span", {}, `${seconds(end - begin)} in all`), el("span", {}, new Date(end * 1000).toLocaleString("en-GB"))));
}

function lane(worker, iterations, events, x, run) {
  const drawn = svg("svg", { viewBox: `0 0 ${WIDTH} ${LANE}`, preserveAspectRatio: "none", role: "img", "aria-label": `the time of ${worker}` });
  const step = Math.ceil(iterations.length / 500);
  for (let place = 0; place < iterations.length; place += step) drawn.append(...bars(worker, iterations.slice(place, place + step), x, run));
  const told = events.filter((event) => event.worker === worker && event.event in MARKS && typeof event.time === "number");
  for (const event of told.filter((each) => each.event !== "pushed" || told.length < 400)) {
    const [kind, word] = MARKS[event.event];
    const text = `${worker} ${word} at ${new Date(event.time * 1000).toLocaleTimeString("en-GB")}${event.reason ? `\n${event.reason}` : ""}`;
    const on = { mousemove: (moved) => hint(text, moved), mouseleave: () => hint("") };
    drawn.append(svg("line", { class: `event ${kind}`, x1: x(event.time), x2: x(event.time), y1: event.event === "pushed" ? LANE - 8 : 0, y2: LANE, "data-event": event.event, on }));
  }
  return el("div", { class: "lane" }, el("span", { class: "lane-name", title: worker }, worker), drawn);
}

function bars(worker, lines, x, run) {
  const spent = {};
  for (const line of lines) for (const [name, each] of Object.entries(line.slot_seconds_by_worker[worker] || {})) if (name in COLOURS && typeof each === "number") spent[name] = (spent[name] || 0) + each;
  const all = Object.values(spent).reduce((sum, each) => sum + each, 0);
  if (!all) return [];
  const [first, last] = [lines[0], lines[lines.length - 1]];
  const [left, right] = [x(first.time - (first.iteration_s || 0)), x(last.time)];
  const where = first === last ? `iteration ${first.iteration}` : `iterations ${first.iteration} to ${last.iteration}`;
  const text = [`${worker}, ${where}`, ...Object.entries(spent).map(([name, each]) => `${TITLES[name]}: ${percent(each / all)}`), "click: its episodes"].join("\n");
  const on = {
    mousemove: (event) => hint(text, event),
    mouseleave: () => hint(""),
    click: () => (hint(""), go("episodes", { run, worker, iteration_from: first.iteration, iteration_to: last.iteration })),
  };
  let top = 0;
  return Object.keys(COLOURS).filter((name) => spent[name]).map((name) => {
    const height = (spent[name] / all) * LANE;
    top += height;
    return svg("rect", { class: `bar ${COLOURS[name]}`, x: left, width: Math.max(0.5, right - left - 0.6), y: top - height, height, on });
  });
}

function overall(totals, events, run) {
  const lost = (worker) => events.filter((event) => event.event === "worker_lost" && event.worker === worker).length;
  const head = ["worker", "slot time", "in episodes", "host learns", "lost or waiting", "losses", "where it goes"].map((title) => el("th", { scope: "col" }, title));
  const rows = totals.map((entry) => {
    const share = (names) => percent(names.reduce((sum, name) => sum + (entry.spent[name] || 0), 0) / entry.all);
    const parts = Object.keys(COLOURS).filter((name) => entry.spent[name]).map((name) => el("span", { class: `part ${COLOURS[name]}`, title: `${TITLES[name]}: ${seconds(entry.spent[name])}`, style: { width: `${(entry.spent[name] / entry.all) * 100}%` } }));
    return el("tr", {}, el("th", { scope: "row" }, el("a", { href: link("events", { run, worker: entry.worker }) }, entry.worker)), el("td", {}, seconds(entry.all)), el("td", {}, share(EPISODES)), el("td", {}, share(["update"])), el("td", {}, share(LOST)), el("td", {}, short(lost(entry.worker))), el("td", {}, el("span", { class: "parts" }, parts)));
  });
  return el("div", { class: "wide card", tabindex: 0, role: "region", "aria-label": "workers" }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)));
}
