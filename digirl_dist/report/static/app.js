// The page: its views, what is live, and the keyboard.

import { el, hint, show, table } from "./dom.js";
import { compare, episode } from "./episode.js";
import { episodes } from "./episodes.js";
import { events } from "./events.js";
import { Index } from "./index.js";
import { overview } from "./overview.js";
import { go, link, note, route } from "./route.js";
import { isLive, runPage } from "./run.js";
import * as source from "./source.js";
import { tasks } from "./tasks.js";
import { workers } from "./workers.js";

const VIEWS = table({ runs: overview, run: runPage, episodes, episode, compare, tasks, workers, events });
const TABS = [["runs", "Runs"], ["episodes", "Episodes"], ["tasks", "Tasks"], ["workers", "Workers"], ["events", "Events"]];
const TICK_MS = 2000;
const KEYS = [["1 – 5", "views"], ["/", "search"], ["↑ ↓", "runs, tasks, episodes"], ["← →", "steps"], ["j k", "episodes"], ["h d", "heat map, what changed"], ["g c", "its group, across checkpoints"], ["+ −", "zoom"], ["Esc", "back"], ["?", "this list"]];
const main = document.getElementById("main");
const keys = el("dialog", { class: "card", "aria-label": "keys" }, el("dl", { class: "terms" }, KEYS.map(([key, act]) => [el("dt", {}, key), el("dd", {}, act)])), el("button", { type: "button", class: "small", on: { click: () => keys.close() } }, "Close"));
document.body.append(keys);

const state = {
  runs: new Map(),
  indices: new Map(),
  hidden: new Set(),
  listed: "#/episodes",
  tops: new Map(), // how far each list of episodes was scrolled, by its address
  index: (run) => state.indices.get(run),
  redraw: () => draw(),
  // Changes the address of the view that is shown, and nothing else.
  note: (query) => {
    Object.assign(state.route.query, query);
    note(state.route.view, state.route.query, ...state.route.parts);
  },
  is: (place) => place.isConnected,
};

function draw() {
  hint("");
  state.route = route();
  state.live = state.keys = state.tick = null;
  if (state.route.view === "episodes") state.listed = location.hash;
  const place = el("div", { class: `view ${state.route.view}` });
  main.replaceChildren(place);
  bar();
  const view = VIEWS[state.route.view] ?? overview;
  document.title = `${state.route.parts.join(" ") || state.route.view} – digirl_dist`;
  new Promise((shown) => shown(view(place, state))).catch((error) => show(place, el("p", { class: "note" }, `This cannot be shown: ${error.message}`)));
}

function bar() {
  const now = { episode: "episodes", compare: "episodes", run: "runs" }[state.route.view] || state.route.view;
  const run = state.route.query.run || (["episode", "compare", "run"].includes(state.route.view) ? state.route.parts[0] : "");
  const tabs = TABS.map(([view, title]) => el("a", { href: link(view, view === "runs" ? {} : { run }), "aria-current": now === view ? "page" : null }, title));
  const live = [...state.runs.values()].some(isLive);
  const word = state.connected === false ? "not connected" : source.isBundle ? written() : live ? "live" : "";
  show(document.getElementById("bar"), el("span", { class: "brand" }, "digirl_dist"), el("nav", { "aria-label": "views" }, tabs), el("span", { class: `live ${live ? "on" : ""}`, role: "status" }, word), el("button", { type: "button", class: "small keys-button", on: { click: showKeys } }, "Keys (?)"));
}

function written() {
  const times = [...state.runs.values()].map((run) => run.written);
  return `one file${times.length ? `, as of ${new Date(Math.max(...times) * 1000).toLocaleString("en-GB")}` : ""}`;
}

function showKeys() {
  if (!keys.open) keys.showModal();
}

async function refreshRuns(names) {
  for (const name of names) state.runs.set(name, await source.run(name));
}

// Fetches the rows that a run's index lacks; true if there were any.
async function refreshIndex(run) {
  if (!state.indices.has(run)) state.indices.set(run, new Index());
  const index = state.indices.get(run);
  let grown = false;
  let answer;
  do {
    answer = await source.rows(run, answer ? index.size : index.wanted);
    grown = index.add(answer) || grown;
  } while (answer.more);
  return grown;
}

let busy = null;
let told = [];
let handled = new Map(); // what was told of each run before

async function changed(progress) {
  told = progress;
  busy ??= update()
    .catch(() => {}) // the next change asks again
    .finally(() => (busy = null));
}

async function update() {
  let seen;
  do {
    seen = told;
    const another = (run) => run.id && state.runs.get(run.name)?.id && run.id !== state.runs.get(run.name).id;
    if (seen.some(another)) return location.reload(); // another run has its folder
    const names = (...parts) => seen.filter((run) => parts.some((part) => run[part] !== handled.get(run.name)?.[part])).map((run) => run.name);
    await refreshRuns(names("metrics", "gone", "state"));
    for (const { name, doing, since } of seen) Object.assign(state.runs.get(name), { doing, since });
    await Promise.all(names("episodes", "unread", "metrics").map(refreshIndex));
    handled = new Map(seen.map((run) => [run.name, run]));
    await state.live?.();
  } while (seen !== told);
  bar();
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches?.("input:not([type=checkbox]):not([type=radio]), select, textarea");
  if (typing) return event.key === "Escape" ? event.target.blur() : undefined;
  const views = Object.fromEntries(TABS.map(([view], place) => [place + 1, view]));
  const search = () => (document.getElementById("f-text") ? document.getElementById("f-text").focus() : go("episodes"));
  if (event.key === "?") return showKeys();
  if (keys.open || event.target.matches?.("pre[tabindex]")) return;
  const act = state.keys?.(event) || (event.key === "/" ? search : views[event.key] && (() => go(views[event.key])));
  if (!act) return;
  event.preventDefault();
  act();
}

async function start() {
  await refreshRuns(await source.names());
  for (const run of state.runs.keys()) state.indices.set(run, new Index());
  draw();
  await Promise.all([...state.runs.keys()].map(refreshIndex));
  if (state.live) state.live();
  else if (state.route.view !== "runs") draw();
  setInterval(() => document.hidden || state.tick?.(), TICK_MS);
  source.follow(changed, (connected) => {
    state.connected = connected;
    bar();
  });
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // its address would lead to another view
  main.focus();
});
window.addEventListener("hashchange", () => state.runs.size && draw());
window.addEventListener("keydown", pressed);
start().catch((error) => show(main, el("p", { class: "note" }, error.message)));
