// One episode, step by step: what was seen and done, what the policy thought, and what the update made of it.

import { lineChart } from "./charts.js";
import { badge, copyable, el, percent, pythonText, seconds, short, show, when } from "./dom.js";
import { colour, tellsSuccess } from "./figures.js";
import { go, link, note } from "./route.js";
import { difference, heat, marks, picture } from "./screen.js";
import * as source from "./source.js";

const MOST_LINES = 12; // of a vector

export async function episode(place, state) {
  const [run = "", key = ""] = state.route.parts;
  const index = state.index(run);
  const row = index?.row(key);
  if (row === undefined) {
    const told = index?.unread ? "This episode has not been read yet …" : `There is no episode ${key} in ${index ? run : `${run}, which is no run that is shown`}.`;
    show(place, el("p", { class: "note" }, told), el("a", { href: link("episodes", {}) }, "← all episodes"));
    state.live = () => state.index(run)?.row(key) !== undefined && state.redraw();
    if (index?.unread) await source.episode(run, key).catch(() => {}); // it is read before the others
    return;
  }
  const view = new View(place, state, { run, key, row, index });
  show(place, el("p", { class: "hint" }, "Reading the episode …"));
  try {
    view.record = await source.episode(run, key);
  } catch (error) {
    show(place, el("p", { class: "note" }, error.message));
    return;
  }
  if (!state.is(place)) return;
  view.draw();
  state.keys = (event) => view.pressed(event);
  view.think();
}

class View {
  constructor(place, state, of) {
    Object.assign(this, of, { place, state });
    const query = state.route.query;
    this.step = Math.max(0, Math.floor(Number(query.step) || 0));
    this.shows = { heat: query.heat !== "0", changes: query.changes === "1" };
    this.version = query.version ?? null;
    this.zoom = 1;
    this.thoughts = null;
  }

  get of() {
    return this.state.runs.get(this.run);
  }

  get rated() {
    return tellsSuccess(this.of, this.index);
  }

  get steps() {
    return this.record.steps;
  }

  draw() {
    const { index, row } = this;
    this.step = Math.min(this.step, this.steps.length);
    const name = index.word("instruction", row) || index.word("task", row);
    const fact = (title, content) => el("span", {}, `${title} `, el("b", {}, content));
    const facts = [
      fact("task", index.word("task", row)),
      fact("reward", short(index.number("reward", row))),
      fact("steps", String(this.steps.length)),
      fact("iteration", String(index.number("iteration", row))),
      fact("policy", `version ${index.number("policy_version", row)}`),
      fact("worker", el("a", { href: link("events", { run: this.run, worker: index.word("worker", row), slot: index.number("slot", row) }) }, `${index.word("worker", row)} / slot ${index.number("slot", row)}`)),
      fact("seed", String(index.number("seed", row))),
      fact("attempt", String((index.number("attempt", row) ?? 0) + 1)),
    ];
    const [landed, took] = [index.number("time", row), index.number("seconds", row)];
    if (took !== null) facts.push(fact("took", `${seconds(took)}, ${seconds(took / Math.max(1, this.steps.length))} a step`));
    if (landed !== null) facts.push(fact("landed", when(landed)));
    this.stage = el("div", { class: "stage" });
    this.panel = el("section", { class: "panel", "aria-label": "this step" });
    this.curves = el("div", { class: "charts of-steps" });
    this.film = el("div", { class: "film", role: "group", "aria-label": "steps" });
    const back = this.state.selection?.run === this.run ? this.state.listed : link("episodes", { run: this.run });
    show(
      this.place,
      el("nav", { class: "crumbs", "aria-label": "episode" }, el("a", { href: back }, "← all episodes"), this.neighbour(-1, "previous (k)"), this.neighbour(1, "next (j)")),
      el("h1", { class: "title" }, this.rated ? badge(index.success(row)) : null, ` ${name}`),
      el("p", { class: "facts" }, facts),
      index.word("trouble", row) ? el("p", { class: "note" }, `It ran again: ${index.word("trouble", row)}`) : null,
      this.tools(),
      el("div", { class: "split" }, this.stage, this.panel),
      this.film,
      this.curves,
      this.others(),
      this.lines(),
    );
    this.refresh();
  }

  neighbour(side, title) {
    const to = this.beside(side);
    return to === null ? null : el("a", { class: "button small", href: link("episode", {}, this.run, to) }, title);
  }

  beside(side) {
    const chosen = this.state.selection?.run === this.run ? this.state.selection.rows : [];
    const rows = (this.rows ??= chosen.includes(this.row) ? chosen : this.index.filter({}));
    const place = rows.indexOf(this.row);
    const other = place < 0 ? undefined : rows[place + side];
    return other === undefined ? null : this.index.key(other);
  }

  tools() {
    const toggle = (name, title) => {
      const act = (event) => {
        this.shows[name] = !this.shows[name];
        event.currentTarget.setAttribute("aria-pressed", String(this.shows[name]));
        this.refresh();
      };
      return el("button", { type: "button", class: "small", id: `toggle-${name}`, "aria-pressed": String(this.shows[name]), on: { click: act } }, title);
    };
    const move = (side, title, label) => el("button", { type: "button", class: "small", "aria-label": label, on: { click: () => this.go(this.step + side) } }, title);
    const zoom = (factor, title, label) => el("button", { type: "button", class: "small", "aria-label": label, on: { click: () => this.zoomed(factor) } }, title);
    return el("div", { class: "tools", role: "toolbar", "aria-label": "the picture" }, move(-1, "←", "step before"), move(1, "→", "step after"), toggle("heat", "Heat map (h)"), toggle("changes", "What changed (d)"), zoom(1.5, "+", "larger"), zoom(1 / 1.5, "−", "smaller"), this.versions());
  }

  // The same screen to another policy version.
  versions() {
    const kept = this.of.checkpoints;
    if (kept.length < 2) return null;
    const own = this.index.number("policy_version", this.row);
    const options = [["", `policy ${own} (acted)`], ...kept.filter((each) => each !== own).map((each) => [String(each), `policy ${each}`])];
    const select = el("select", { id: "version", on: { change: (event) => ((this.version = event.target.value || null), this.think()) } }, options.map(([value, text]) => el("option", { value }, text)));
    select.value = this.version ?? "";
    return [el("label", { for: "version", class: "soft" }, "explained by"), select];
  }

  async think() {
    if (this.thoughts !== null) {
      this.thoughts = null;
      this.refresh();
    }
    await Promise.allSettled([...this.place.querySelectorAll("img")].map((shot) => shot.decode())); // pictures come first
    if (!this.state.is(this.place)) return;
    try {
      this.thoughts = await source.explanation(this.run, this.key, this.version);
    } catch (error) {
      this.thoughts = { no_probabilities: error.message, no_outcomes: error.message, probabilities: [], outcomes: [], log_probs: [] };
    }
    if (this.state.is(this.place)) this.refresh();
  }

  go(step) {
    this.step = Math.min(Math.max(0, step), this.steps.length);
    this.refresh();
  }

  zoomed(factor) {
    this.zoom = Math.min(4, Math.max(1, this.zoom * factor));
    this.stage.style.setProperty("--zoom", this.zoom);
  }

  refresh() {
    const query = { step: this.step || "", heat: this.shows.heat ? "" : "0", changes: this.shows.changes ? "1" : "", version: this.version };
    note("episode", query, this.run, this.key);
    this.drawStage();
    show(this.panel, this.told());
    show(this.curves, this.overSteps());
    this.drawFilm();
  }

  drawStage() {
    const step = this.steps[this.step];
    const shows = [this.sight(this.step, step ? `step ${this.step}: ${step.caption}` : "the end", true)];
    if (step) shows.push(this.sight(this.step + 1, "after it", false));
    show(this.stage, shows);
    if (step && this.shows.changes) this.compare();
  }

  // What was seen at a place, with what was done to it.
  sight(place, caption, acts) {
    const seen = this.record.seen[place];
    const words = el("figcaption", {}, caption);
    if (!seen.pictured) return el("figure", { class: "sight" }, el("pre", { class: "card seen", tabindex: 0, role: "region", "aria-label": acts ? "what was seen" : "what was seen after it" }, seen.text || (seen.vector ? seen.vector.map((each) => short(each)).join(", ") : "nothing was seen")), words);
    const step = acts ? this.steps[place] : null;
    const cells = this.thoughts?.probabilities[place]?.cells || [];
    const over = step ? [this.shows.heat && cells.length ? heat(cells, "where the policy would touch") : null, marks(step.action)] : null;
    const shot = picture(this.run, this.key, place, acts ? `the screen before step ${place}` : `the screen after step ${place - 1}`);
    return el("figure", { class: "screen" }, el("div", { class: "sheet" }, shot, over), words);
  }

  // Draws what the step changed over the screen after it.
  compare() {
    const shots = [...this.stage.querySelectorAll("img.shot")];
    if (shots.length < 2) return;
    const words = this.stage.querySelectorAll("figcaption")[1];
    const told = (share) => (words.textContent = share === null ? "the pictures cannot be compared" : share ? `after it: ${short(share * 100, 2)} % of the screen changed` : "after it: nothing changed");
    shots[1].after(difference(...shots, told));
  }

  // Curves over the steps; a click goes to the step.
  overSteps() {
    const outcomes = this.thoughts?.outcomes || [];
    const series = (name, values, at) => ({ name, colour: colour(at), points: values.flatMap((y, x) => (typeof y === "number" ? [{ x, y, at: x }] : [])) });
    const vectors = this.record.seen.some((seen) => seen.vector && !seen.pictured) ? this.record.seen.map((seen) => seen.vector || []) : [];
    const width = Math.min(MOST_LINES, Math.max(0, ...vectors.map((vector) => vector.length)));
    const more = vectors.some((vector) => vector.length > width) ? `, the first ${width} numbers` : "";
    const chart = (title, lines) => {
      const known = lines.filter((line) => line.points.length);
      return known.length ? lineChart({ title, lines: known, x_title: "step", now: this.step, pick: (point) => this.go(point.at), says: (point) => `step ${point.at}` }) : null;
    };
    return [
      chart(`What was seen${more}`, [...Array(width).keys()].map((at) => series(String(at), vectors.map((vector) => vector[at]), at))),
      chart("Value and advantage", [series("value", outcomes.map((each) => each.value), 0), series("advantage", outcomes.map((each) => each.advantage), 1)]),
      chart("Reward", [series("reward", this.steps.map((step) => step.reward), 2)]),
      chart("Log-probability of the action", [series("when it acted", this.steps.map((step) => step.log_prob), 3), ...(this.version === null ? [] : [series(`policy ${this.version}`, this.thoughts?.log_probs || [], 4)])]),
    ];
  }

  told() {
    const step = this.steps[this.step];
    const outcome = !this.rated ? "It ended" : this.index.success(this.row) ? "A success" : "No success";
    if (!step) return [el("h2", {}, "The end"), el("p", {}, `${outcome} with a return of ${short(this.index.number("reward", this.row))}.`)];
    const term = (name, value) => [el("dt", {}, name), el("dd", {}, value)];
    const now = this.thoughts?.log_probs[this.step];
    const facts = [...term("action", step.caption), ...(step.touched ? term("touched", step.touched) : []), ...term("log-probability", short(step.log_prob)), ...(now !== undefined && this.version !== null ? term(`to policy ${this.version}`, short(now)) : []), ...term("reward", short(step.reward))];
    if (step.terminated || step.truncated) facts.push(...term("ended", step.terminated ? "by itself" : "by its length"));
    return [
      el("h2", {}, `Step ${this.step}`),
      el("dl", { class: "terms" }, facts),
      step.said ? [el("h3", {}, "What the agent wrote"), el("blockquote", {}, step.said)] : null,
      el("h3", {}, "What the policy would do"),
      this.chances(step),
      el("h3", {}, "Why it was (not) learned"),
      this.outcome(),
      el("details", {}, el("summary", {}, "As it is stored"), el("pre", { tabindex: 0, role: "region", "aria-label": "the action" }, JSON.stringify(step.action, null, 1)), el("pre", { tabindex: 0, role: "region", "aria-label": "the text that was seen" }, this.record.seen[this.step].text)),
    ];
  }

  chances() {
    if (this.thoughts === null) return el("p", { class: "hint" }, "computing …");
    const found = this.thoughts.probabilities[this.step];
    if (!found) return el("p", { class: "hint" }, this.thoughts.no_probabilities || "nothing is known");
    const rows = Object.entries(found.kinds).sort((a, b) => b[1] - a[1]).slice(0, 8);
    return el("div", { class: "bars" }, rows.map(([name, share]) => el("div", { class: "bar-row" }, el("span", {}, name), el("span", { class: "track" }, el("span", { class: "bar c1", style: { width: `${share * 100}%` } })), el("span", { class: "soft" }, share < 0.005 ? "< 1 %" : percent(share)))));
  }

  outcome() {
    if (this.thoughts === null) return el("p", { class: "hint" }, "computing …");
    const found = this.thoughts.outcomes[this.step];
    if (!found) return el("p", { class: "hint" }, this.thoughts.no_outcomes || "nothing is known");
    const numbers = [["weight", found.weight], ["value", found.value], ["advantage", found.advantage]].filter(([, value]) => value !== null);
    return [
      el("p", { id: "verdict" }, el("span", { class: `badge ${found.kept ? "good" : "bad"}` }, found.kept ? "learned" : "left out"), ` ${found.reason}`),
      el("dl", { class: "terms" }, numbers.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, short(value))])),
    ];
  }

  // The lines with which a person goes on from here.
  lines() {
    const { index, row, of } = this;
    const version = index.number("policy_version", row);
    const policy = of.checkpoints.includes(version) ? `run.policy(${version})` : "run.policy()  # the newest: that of this episode was not kept";
    const opened = `from digirl_dist import Fleet, Run\n\nrun = Run(${pythonText(of.folder)})\nepisode = run.episode(${pythonText(this.key)})`;
    const again = `with Fleet.inline(emulator=run.config()["emulator"]) as fleet:\n    policy = ${policy}\n    again = fleet.submit(episode.ticket.task, act=policy, seed=episode.ticket.seed).result()`;
    return el("details", { class: "card" }, el("summary", {}, "Lines to copy: open it in Python, run it again"), copyable("Open in Python", opened.replace("Fleet, ", "")), copyable("Run this episode again, on this machine", `${opened}\n${again}`));
  }

  drawFilm() {
    const frames = this.record.seen.map((seen, place) => {
      const step = this.steps[place];
      const kept = this.thoughts?.outcomes[place]?.kept;
      const mark = kept === undefined ? null : el("span", { class: `kept ${kept ? "yes" : "no"}`, title: kept ? "learned" : "left out" });
      const label = step ? `step ${place}: ${step.caption}` : "the end";
      const shown = seen.pictured ? el("span", { class: "sheet" }, picture(this.run, this.key, place, ""), step ? marks(step.action) : null) : el("span", { class: "blank" }, (seen.text || "").slice(0, 60));
      return el("button", { type: "button", class: "frame", "aria-label": label, "aria-current": place === this.step ? "step" : null, on: { click: () => this.go(place) } }, shown, el("span", { class: "soft" }, step ? `${place} ${step.caption}` : "end"), mark);
    });
    const left = this.film.scrollLeft;
    const now = frames[this.step];
    const focused = this.film.contains(document.activeElement);
    show(this.film, frames);
    this.film.scrollLeft = left;
    if (focused) now?.focus({ preventScroll: true });
    if (now) this.film.scrollLeft = Math.max(0, now.offsetLeft - this.film.clientWidth / 2);
  }

  others() {
    const { index, row, run } = this;
    const cell = (other) => el("a", { class: `square ${!this.rated ? "plain" : index.success(other) ? "good" : "bad"}`, href: link("episode", {}, run, index.key(other)), "aria-current": other === row ? "true" : null, title: `policy ${index.number("policy_version", other)}, reward ${short(index.number("reward", other))}`, "aria-label": `${!this.rated ? "episode" : index.success(other) ? "success" : "failure"} of policy ${index.number("policy_version", other)}` });
    const group = index.group(row);
    const history = index.history(row);
    const beside = (rows) => link("compare", { keys: rows.slice(0, 24).map((each) => index.key(each)).join(",") }, run);
    const spread = history.filter((_, place) => place % Math.ceil(history.length / 12) === 0);
    return el(
      "div",
      { class: "others" },
      el("section", { class: "card" }, el("h2", {}, "Same task and seed"), el("p", { class: "hint" }, `${group.length} in this iteration`), el("div", { class: "squares" }, group.slice(0, 200).map(cell)), group.length > 1 ? el("a", { class: "button small", href: beside(group) }, "side by side (g)") : null),
      el("section", { class: "card" }, el("h2", {}, "This task over time"), el("p", { class: "hint" }, `${history.length} episodes, the oldest policy first`), el("div", { class: "squares" }, history.slice(-400).map(cell)), history.length > 1 ? el("a", { class: "button small", href: beside(spread) }, "across checkpoints (c)") : null),
    );
  }

  pressed(event) {
    const to = (side) => this.beside(side) !== null && go("episode", {}, this.run, this.beside(side));
    const press = (label) => [...this.place.querySelectorAll("a.button")].find((each) => each.textContent.startsWith(label))?.click();
    const acts = {
      ArrowLeft: () => this.go(this.step - 1),
      ArrowRight: () => this.go(this.step + 1),
      Home: () => this.go(0),
      End: () => this.go(this.steps.length),
      j: () => to(1),
      k: () => to(-1),
      h: () => document.getElementById("toggle-heat").click(),
      d: () => document.getElementById("toggle-changes").click(),
      g: () => press("side by side"),
      c: () => press("across"),
      "+": () => this.zoomed(1.5),
      "-": () => this.zoomed(1 / 1.5),
      0: () => this.zoomed(0),
      Escape: () => this.place.querySelector(".crumbs a").click(),
    };
    return acts[event.key];
  }
}

// Several episodes, one below the other.
export async function compare(place, state) {
  const [run] = state.route.parts;
  const index = state.index(run);
  const keys = (state.route.query.keys || "").split(",").filter((key) => index?.row(key) !== undefined);
  const first = keys.length ? index.row(keys[0]) : undefined;
  show(place, el("h1", {}, first === undefined ? "There are no such episodes" : index.word("instruction", first) || index.word("task", first)), el("p", { class: "hint" }, `${keys.length} episodes side by side`));
  for (const key of keys) {
    let record;
    try {
      record = await source.episode(run, key);
    } catch {
      continue;
    }
    if (!state.is(place)) return;
    place.append(strip(run, key, index, record, tellsSuccess(state.runs.get(run), index)));
  }
}

function strip(run, key, index, record, rated) {
  const row = index.row(key);
  const facts = `policy ${index.number("policy_version", row)}, iteration ${index.number("iteration", row)}, reward ${short(index.number("reward", row))}, worker ${index.word("worker", row)}`;
  const frames = record.seen.map((seen, step) => el("a", { class: "frame", href: link("episode", { step: step || "" }, run, key), "aria-label": record.steps[step]?.caption || "the end" }, seen.pictured ? el("span", { class: "sheet" }, picture(run, key, step, ""), record.steps[step] ? marks(record.steps[step].action) : null) : el("span", { class: "blank" }, seen.text.slice(0, 60)), el("span", { class: "soft" }, record.steps[step]?.caption || "end")));
  return el("section", { class: "strip card" }, el("p", { class: "facts" }, rated ? badge(index.success(row)) : null, el("span", {}, facts)), el("div", { class: "film", role: "group", "aria-label": `steps of ${key}` }, frames));
}
