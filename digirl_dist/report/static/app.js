// The page: its views, what is live, and the keyboard.

import { el, hint, show, table } from "./dom.js";
import { compare, episode } from "./episode.js";
import { episodes } from "./episodes.js";
import { Index } from "./index.js";
import { overview } from "./overview.js";
import { go, link, route } from "./route.js";
import * as source from "./source.js";
import { tasks } from "./tasks.js";
import { workers } from "./workers.js";

const VIEWS = table({ runs: overview, episodes, episode, compare, tasks, workers });
const TABS = [["runs", "Runs"], ["episodes", "Episodes"], ["tasks", "Tasks"], ["workers", "Workers"]];
const KEYS = [["1 – 4", "views"], ["/", "search"], ["↑ ↓", "the list of episodes"], ["← →", "steps"], ["j k", "episodes"], ["h d", "heat map, changes"], ["g c", "its group, across checkpoints"], ["+ −", "zoom"], ["Esc", "back"], ["?", "this list"]];
const main = document.getElementById("main");
const keys = el("dialog", { class: "card", "aria-label": "keys" }, el("dl", { class: "terms" }, KEYS.map(([key, act]) => [el("dt", {}, key), el("dd", {}, act)])), el("button", { type: "button", class: "small", on: { click: () => keys.close() } }, "Close"));
document.body.append(keys);

const state = {
  runs: new Map(),
  indices: new Map(),
  hidden: new Set(),
  bands: true,
  listed: "#/episodes",
  tops: new Map(), // how far each list of episodes was scrolled, by its address
  index: (run) => state.indices.get(run),
  redraw: () => draw(),
  is: (place) => place.isConnected,
};

function draw() {
  hint("");
  state.route = route();
  state.live = state.keys = null;
  state.figure = state.route.query.figure;
  if (state.route.view === "episodes") state.listed = location.hash;
  const place = el("div", { class: `view ${state.route.view}` });
  main.replaceChildren(place);
  bar();
  const view = VIEWS[state.route.view] ?? overview;
  document.title = `${state.route.parts.join(" ") || state.route.view} – digirl_dist`;
  new Promise((shown) => shown(view(place, state))).catch((error) => show(place, el("p", { class: "note" }, `This cannot be shown: ${error.message}`)));
}

function bar() {
  const now = { episode: "episodes", compare: "episodes" }[state.route.view] || state.route.view;
  const run = state.route.query.run || (state.route.view === "episode" ? state.route.parts[0] : "");
  const tabs = TABS.map(([view, title]) => el("a", { href: link(view, view === "runs" ? {} : { run }), "aria-current": now === view ? "page" : null }, title));
  const live = [...state.runs.values()].some((each) => each.running);
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
    answer = await source.rows(run, index.size);
    grown = index.add(answer) || grown;
  } while (answer.more);
  return grown;
}

let busy = null;
let told = [];

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
    const known = (run) => state.runs.get(run.name) || {};
    if (seen.some((run) => run.id && known(run).id && run.id !== known(run).id)) return location.reload(); // another run has its folder
    const differs = (run) => run.metrics !== known(run).size || run.gone !== known(run).gone || run.state !== known(run).state;
    const changed = seen.filter(differs);
    const newFigures = changed.length > 0;
    await refreshRuns(changed.map((run) => run.name));
    const before = [...state.indices.values()].map((index) => index.unread).join();
    const grown = await Promise.all(seen.map((run) => refreshIndex(run.name)));
    const read = before !== [...state.indices.values()].map((index) => index.unread).join();
    if (newFigures && state.route.view === "runs") draw();
    else if ((grown.some(Boolean) || read) && state.live) state.live();
  } while (seen !== told);
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input:not([type=checkbox]):not([type=radio]), select, textarea");
  if (typing) return event.key === "Escape" ? event.target.blur() : undefined;
  const views = { 1: "runs", 2: "episodes", 3: "tasks", 4: "workers" };
  const search = () => (document.getElementById("f-text") ? document.getElementById("f-text").focus() : go("episodes"));
  if (event.key === "?") return showKeys();
  if (keys.open) return;
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
  source.follow(changed, (connected) => {
    state.connected = connected;
    bar();
  });
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // its address would lead to another view
  main.focus();
});
window.addEventListener("hashchange", draw);
window.addEventListener("keydown", pressed);
start().catch((error) => show(main, el("p", { class: "note" }, error.message)));
