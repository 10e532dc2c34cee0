// Where the data come from: the server, or a bundle, which holds what a server would answer.

const embedded = document.getElementById("bundle");
const bundle = embedded === null ? null : JSON.parse(embedded.textContent);

export const isBundle = bundle !== null;

const PAUSES_MS = [200, 500, 1000, 2000];

// A browser breaks off its requests, even those to loopback, when the machine's network changes.
async function reached(address) {
  for (const pause of PAUSES_MS) {
    try {
      return await fetch(address);
    } catch {
      await new Promise((done) => setTimeout(done, pause));
    }
  }
  return fetch(address).catch(() => {
    throw new Error("The viewer does not answer. Is digirl-dist view still running?");
  });
}

async function ask(what, query = {}) {
  if (bundle) return what === "runs" ? Object.keys(bundle) : bundle[query.run][what];
  const answer = await reached(`api/${what}?${new URLSearchParams(query)}`);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

export async function names() {
  return ask("runs");
}

const kept = new Map(); // what the server has sent of each run and part

// Asks for the lines that a page lacks, and adds them to those that it has.
function grown(name, part, answer) {
  const known = kept.get(`${name} ${part}`);
  const lines = answer.fresh || !known ? answer.lines : known.lines.concat(answer.lines);
  kept.set(`${name} ${part}`, { next: answer.next, lines });
  return lines;
}

// What a page says where a file is so long that it gets the newest lines alone.
const cut = (answer, file, count) => (answer.cut ? [`Of ${file}, which is long, this page has the newest ${count} lines alone: what it sums up and draws begins with them.`] : []);

const next = (name, part) => kept.get(`${name} ${part}`)?.next ?? "";

// Of an iteration that was repeated after a crash, the later line.
function last(lines) {
  return [...new Map(lines.map((line) => [line.iteration, line])).values()].sort((a, b) => a.iteration - b.iteration);
}

export async function run(name) {
  const before = kept.get(name) ?? { stamp: "", config: {}, given: [] };
  const { state, figures, measured } = await ask("run", { run: name, figures: next(name, "figures"), measured: next(name, "measured"), stamp: before.stamp });
  Object.assign(state, state.settings ?? { config: before.config, given: before.given });
  state.size = state.metrics;
  state.metrics = last(grown(name, "figures", figures));
  state.evaluations = grown(name, "measured", measured);
  state.notes = [...state.notes, ...cut(figures, "metrics.jsonl", state.metrics.length), ...cut(measured, "evaluation.jsonl", state.evaluations.length)];
  kept.set(name, state);
  return state;
}

// A mapping whose values have a text: a file may hold anything.
const plain = (entries) => Object.fromEntries(Object.entries(entries ?? {}).map(([key, value]) => [key, typeof value === "object" && value !== null ? JSON.stringify(value) : value]));

export async function rows(run, first) {
  return ask("rows", { run, first });
}

export async function timeline(run) {
  const { iterations, events } = await ask("timeline", { run, iterations: next(run, "iterations"), events: next(run, "events") });
  const found = { iterations: last(grown(run, "iterations", iterations)), events: grown(run, "events", { ...events, lines: events.lines.map(plain) }) };
  return { ...found, notes: [...cut(iterations, "metrics.jsonl", found.iterations.length), ...cut(events, "events.jsonl", found.events.length)] };
}

// What each worker and slot does, as the run has written it.
export async function status(run) {
  const { time, workers } = await ask("status", { run });
  const slots = (worker) => (Array.isArray(worker?.slots) ? worker.slots.map(plain) : []);
  return { time, workers: Object.fromEntries(Object.entries(workers ?? {}).map(([name, worker]) => [name, { ...plain(worker), slots: slots(worker) }])) };
}

// The end of a log that lies in the run's folder; "" for one that does not.
export async function log(run, worker, slot) {
  return bundle ? "" : ask("log", { run, worker, slot });
}

export async function episode(run, key) {
  if (!bundle) return ask("episode", { run, key });
  const found = bundle[run].episode[key];
  if (!found) throw new Error("This file does not hold the steps of this episode. Run digirl-dist view on the run's folder to see it.");
  return found;
}

export async function explanation(run, key, version) {
  if (!bundle) return ask("explain", version === null ? { run, key } : { run, key, version });
  const reason = "A file holds no explanations: digirl-dist view computes them.";
  return { no_probabilities: reason, no_outcomes: reason, probabilities: [], outcomes: [], log_probs: [] };
}

export function image(run, key, step) {
  if (!bundle) return `api/image?${new URLSearchParams({ run, key, step })}`;
  return (bundle[run].images[key] || [])[step] || "";
}

// Calls back with the state of all runs, at once and whenever it changes.
export function follow(changed, connected) {
  if (bundle) return;
  const stream = new EventSource("api/live");
  stream.onmessage = (event) => changed(JSON.parse(event.data));
  stream.onopen = () => connected(true);
  stream.onerror = () => connected(false);
}
