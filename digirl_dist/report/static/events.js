// What happened in a run, and to whom: the newest first, of one worker or slot or of all, with the log of it.

import { clock, copyable, el, renew, seconds, shellWord, short, show, table, when } from "./dom.js";
import { go, link } from "./route.js";
import * as source from "./source.js";

const SHOWN = 400;
const BAD = /lost|fail|refused|suspected|away|full|aside|faults|damaged|retried|left_out/;
const QUIET = ["pushed", "run_started"]; // of these a short list shows none
const MEASURED = table({ seconds: (value) => `in ${seconds(value)}`, bytes: (value) => `${short(value / 1e6)} MB` });
const NOT_SAID = ["time", "event", "worker", "slot", "reason", "remedy"];

const isBad = (event) => BAD.test(event.event) || (event.event === "slot" && event.state !== "open" && Boolean(event.reason));

function words(event) {
  const rest = Object.entries(event).filter(([key, value]) => !NOT_SAID.includes(key) && value !== "" && value !== null && value !== undefined);
  const told = rest.map(([key, value]) => (typeof value === "number" && MEASURED[key]?.(value)) || `${key.replaceAll("_", " ")} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
  return [event.reason, event.remedy && `→ ${event.remedy}`, told].filter(Boolean).join(event.reason ? " · " : ", ");
}

// Consecutive events of one kind and worker are one line with a count: [{event, count}], the newest first.
function grouped(events, most) {
  const found = [];
  for (let place = events.length - 1; place >= 0 && found.length <= most; place--) {
    const event = events[place];
    const last = found[found.length - 1];
    const same = last && ["event", "worker", "slot", "state"].every((key) => last.event[key] === event[key]);
    if (same) last.count++;
    else found.push({ event, count: 1 });
  }
  return found.slice(0, most);
}

function row({ event, count }, run) {
  const who = event.worker === undefined ? "" : el("a", { href: link("events", { run, worker: event.worker, slot: event.slot }) }, `${event.worker}${event.slot === undefined ? "" : ` / ${event.slot}`}`);
  const kind = el("span", { class: isBad(event) ? "kind is-bad" : "kind" }, `${String(event.event).replaceAll("_", " ")}${count > 1 ? ` (${count} times)` : ""}`);
  return el("tr", {}, el("td", { class: "when", title: when(event.time) }, clock(event.time)), el("td", {}, kind), el("td", { class: "who" }, who), el("td", { class: "said" }, words(event)));
}

function events_table(rows, run) {
  const head = ["when", "what", "worker / slot", "why"].map((title) => el("th", { scope: "col" }, title));
  return el("div", { class: "wide card", tabindex: 0, role: "region", "aria-label": "events" }, el("table", { class: "events" }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows.map((each) => row(each, run)))));
}

// The last events, for the page of a run.
export function lastEvents(events, run, most = 8) {
  const rows = grouped(events.filter((event) => !QUIET.includes(event.event)), most);
  const all = el("a", { class: "button small", href: link("events", { run }) }, "All events and logs");
  return el("section", {}, el("h2", {}, "Last events"), rows.length ? events_table(rows, run) : el("p", { class: "hint" }, "No event worth a line yet."), el("p", {}, all));
}

export async function events(place, state) {
  const names = [...state.runs.keys()];
  const wanted = { ...state.route.query };
  const run = (wanted.run = names.includes(wanted.run) ? wanted.run : names[0]);
  const change = (event) => go("events", { ...wanted, ...(event.target.name === "worker" ? { slot: "" } : {}), [event.target.name]: event.target.value });
  const select = (name, label, options) => {
    const made = el("select", { id: `e-${name}`, name, on: { change } }, options.map(([value, text]) => el("option", { value }, text)));
    made.value = wanted[name] ?? "";
    return el("div", { class: "field" }, el("label", { for: `e-${name}` }, label), made);
  };
  const head = el("div", { class: "filters card" });
  const log = el("div");
  const body = el("div");
  show(place, el("h1", {}, "Events and logs"), head, log, body);
  const passes = (event) => ["worker", "slot", "event"].every((name) => !wanted[name] || String(event[name]) === wanted[name]);
  const refresh = async () => {
    const { events: found, notes } = await source.timeline(run);
    if (!state.is(place)) return;
    const offered = (name) => [["", "any"], ...[...new Set([...found.map((event) => event[name]), wanted[name]].filter((each) => each !== undefined && each !== "").map(String))].sort().map((each) => [each, each.replaceAll("_", " ")])];
    const slots = offered("slot").length > 1 || wanted.worker;
    if (!head.contains(document.activeElement)) show(head, names.length > 1 ? select("run", "Run", names.map((name) => [name, name])) : null, select("worker", "Worker", offered("worker")), slots ? select("slot", "Slot", slotsOf(offered("slot"), state.runs.get(run))) : null, select("event", "Kind", offered("event")), el("a", { class: "button", href: link("events", { run }) }, "Clear"));
    const rows = grouped(found.filter(passes), SHOWN);
    renew(body, notes.filter((note) => note.startsWith("Of events")).map((note) => el("p", { class: "note" }, note)), rows.length ? events_table(rows, run) : el("p", { class: "hint" }, "No such event."), rows.length === SHOWN ? el("p", { class: "hint" }, `The newest ${SHOWN}; events.jsonl has all.`) : null);
  };
  await refresh();
  if (wanted.worker && state.is(place)) show(log, await logOf(state.runs.get(run), wanted.worker, wanted.slot));
  if (state.is(place)) state.live = () => refresh().catch(() => {}); // the next change asks again
}

// Any slot has a log, also one without an event.
function slotsOf(offered, run) {
  const most = Number.isInteger(run.config.bsize) ? Math.min(run.config.bsize, 64) : 0;
  const named = [...Array(most).keys()].map(String).filter((slot) => !offered.some(([value]) => value === slot));
  return [...offered, ...named.map((slot) => [slot, slot])].sort((a, b) => a[0] - b[0]);
}

async function logOf(run, worker, slot) {
  const title = slot ? `log of ${worker}, slot ${slot}` : `log of ${worker}`;
  const text = await source.log(run.name, worker, slot ?? "").catch(() => "");
  if (text) return el("section", { class: "log" }, el("h2", {}, title), el("pre", { class: "card", tabindex: 0, role: "region", "aria-label": title }, text));
  const line = logLine(run, worker, slot);
  return el("section", { class: "log" }, el("h2", {}, title), line ? copyable("The log is on the worker; this reads its end:", line) : el("p", { class: "hint" }, "It was written beside the emulators of this run's own machine, and went with them; what failed quotes its last lines."));
}

// As a worker is called after its entry.
const nameOf = (name) => String(name).replace(/[^A-Za-z0-9.-]/g, "-").replace(/^-+|-+$/g, "");

// An entry with the user and the port that its host names, as host, user@host:port, an IPv6 address or [IPv6]:port.
function located(given) {
  const entry = typeof given === "object" && given ? given : { host: given };
  const [, user, rest] = String(entry.host).trim().match(/^(?:(.*)@)?(.*)$/s);
  const [, bracketed, plain, port] = rest.match(/^(?:\[(.*)\]|([^:]*))(?::(\d*))?$/s) ?? [];
  const host = bracketed ?? plain ?? rest;
  return { ...entry, host, name: entry.name ?? (port && host !== "slurm" ? `${host}-${port}` : host), port: entry.port ?? port, username: entry.username ?? user };
}

// The line that shows the end of a log on a worker; null where no ssh leads there.
export function logLine(run, worker, slot) {
  const { config } = run;
  if (config.dry_run || config.parallel === "single" || (config["collector.name"] ?? "ssh") !== "ssh") return null;
  const entries = (config.worker_ips || []).map(located);
  if (entries.some((each) => each.host === "slurm" && worker.startsWith(`${nameOf(each.name)}-`))) return null; // srun alone leads there
  const entry = entries.find((each) => nameOf(each.name) === worker) || { host: worker };
  const user = entry.username ?? config.worker_username;
  const host = `${user ? `${user}@` : ""}${entry.host}`;
  if (/^-/.test(host)) return null;
  const folder = `${entry.temp_path ?? config.worker_temp_path ?? "~/.cache/digirl_dist/jobs"}/${run.id}-${worker}/${slot ? `slot-${slot}.log` : "program.log"}`;
  const path = folder.startsWith("~/") ? `~/${shellWord(folder.slice(2))}` : shellWord(folder);
  return `ssh ${entry.port ? `-p ${shellWord(entry.port)} ` : ""}${shellWord(host)} ${shellWord(`tail -n 200 ${path}`)}`;
}
