// All episodes with filters, in a list that draws only the rows on the screen.

import { badge, clock, el, seconds, short, show, when } from "./dom.js";
import { tellsSuccess } from "./figures.js";
import { link, note } from "./route.js";
import { image } from "./source.js";

const ROW = 52;
const THUMBS = 160; // pictures that are kept
const REST_MS = 120; // how long a list rests before its pictures are asked for
const CHOICES = ["task", "worker", "purpose"];
const COLUMNS = [
  ["iteration", "iteration"],
  ["task", "task"],
  ["success", "outcome"],
  ["reward", "reward"],
  ["steps", "steps"],
  ["worker", "worker"],
  ["policy_version", "policy"],
  ["seconds", "took"],
  ["time", "landed"],
  ["trouble", "trouble"],
];

export function episodes(place, state) {
  const names = [...state.runs.keys()];
  const run = names.includes(state.route.query.run) ? state.route.query.run : names[0];
  const wanted = { ...state.route.query, run };
  const list = new List(state, run, wanted);
  const change = () => {
    const form = place.querySelector("form");
    for (const field of form.elements) if (field.name) wanted[field.name] = field.type === "radio" ? form.elements[field.name].value : field.value;
    if (wanted.run !== run) return (location.hash = link("episodes", wanted));
    note("episodes", wanted);
    state.listed = location.hash;
    list.refresh();
  };
  const form = filters(state, wanted, change);
  show(place, el("h1", {}, "Episodes"), form, list.told, list.head(change), list.box);
  list.refresh();
  list.box.scrollTop = state.tops.get(location.hash) ?? 0;
  state.live = () => {
    for (const name of CHOICES) offer(form.elements[name], state.index(run).words[name], wanted[name]);
    list.refresh(true);
  };
  state.keys = (event) => list.key(event);
}

// The words of a column to choose from: more come while files are read, and the one that an address asks for is there before.
function offer(select, words, wanted = "") {
  const known = [...new Set([...words, wanted])].filter(Boolean).sort();
  if (select.options.length === known.length + 1) return;
  show(select, el("option", { value: "" }, "any"), known.map((word) => el("option", { value: word }, word.slice(0, 80))));
  select.value = wanted;
}

function filters(state, wanted, change) {
  const index = state.index(wanted.run);
  const field = (name, label, input) => el("div", { class: "field" }, el("label", { for: `f-${name}` }, label), input);
  const select = (name, label, options) => {
    const made = el("select", { id: `f-${name}`, name }, options.map(([value, text]) => el("option", { value }, text)));
    made.value = wanted[name] || "";
    return field(name, label, made);
  };
  const words = (name, label) => {
    const made = el("select", { id: `f-${name}`, name });
    offer(made, index.words[name], wanted[name]);
    return field(name, label, made);
  };
  const from = (name, low, title) => {
    const input = el("input", { id: `f-${name}`, name, type: "number", step: "any", placeholder: low, "aria-label": title });
    input.value = wanted[name] ?? "";
    return input;
  };
  const range = (name, label) => el("div", { class: "field" }, el("label", { for: `f-${name}_from` }, label), el("span", { class: "range" }, from(`${name}_from`, "from", `${label} from`), from(`${name}_to`, "to", `${label} to`)));
  const outcome = ["", "success", "failure"].map((value) => {
    const input = el("input", { type: "radio", name: "outcome", value, id: `o-${value}` });
    input.checked = (wanted.outcome || "") === value;
    return [input, el("label", { for: `o-${value}` }, value || "all")];
  });
  const text = el("input", { id: "f-text", name: "text", type: "search", placeholder: "task, instruction, trouble", autocomplete: "off", spellcheck: "false" });
  text.value = wanted.text || "";
  const submit = (event) => event.preventDefault();
  return el(
    "form",
    { class: "filters card", role: "search", "aria-label": "filters", on: { input: change, submit } },
    state.runs.size > 1 ? select("run", "Run", [...state.runs.keys()].map((name) => [name, name])) : null,
    field("text", "Search (/)", text),
    words("task", "Task"),
    el("fieldset", { class: "segments" }, el("legend", {}, "Outcome"), outcome),
    words("worker", "Worker"),
    words("purpose", "Purpose"),
    select("error", "Errors", [["", "any"], ["trouble", "ran again after an error"], ["truncated", "cut at the last step"]]),
    range("iteration", "Iteration"),
    range("steps", "Length"),
    range("reward", "Reward"),
    el("a", { class: "button", href: link("episodes", { run: wanted.run }) }, "Clear"),
  );
}

class List {
  constructor(state, run, wanted) {
    this.state = state;
    this.run = run;
    this.wanted = wanted;
    this.rows = [];
    this.thumbs = new Map();
    this.told = el("p", { class: "hint", role: "status" });
    this.inside = el("div", { class: "rows", role: "rowgroup" });
    this.spacer = el("div", { class: "spacer", role: "presentation" }, this.inside);
    this.box = el("div", { class: "list card", role: "table", "aria-label": "episodes", tabindex: 0, on: { scroll: () => this.scrolled() } }, this.spacer);
  }

  head(change) {
    const sort = (name) => () => {
      this.wanted.sort = this.wanted.sort === `-${name}` ? name : `-${name}`;
      change();
    };
    this.heads = COLUMNS.map(([name, title]) => el("button", { type: "button", class: "sort", "data-name": name, on: { click: sort(name) } }, title));
    return el("div", { class: "head grid" }, el("span", {}, ""), this.heads);
  }

  refresh(quiet = false) {
    const index = this.state.index(this.run);
    this.rows = index.filter(this.wanted);
    this.state.selection = { run: this.run, rows: this.rows };
    const won = this.rows.reduce((sum, row) => sum + index.flags.success[row], 0);
    const reading = index.unread ? " – reading more …" : "";
    const order = this.wanted.sort || "-iteration";
    COLUMNS.forEach(([name, title], place) => (this.heads[place].textContent = `${title}${order === name ? " ↑" : order === `-${name}` ? " ↓" : ""}`));
    const none = index.size && !this.rows.length ? "; Clear shows all" : "";
    this.rated = tellsSuccess(this.state.runs.get(this.run), index);
    this.told.textContent = `${short(this.rows.length)} of ${short(index.size)} episodes${this.rated ? `, ${short(won)} successful` : ""}${none}${reading}${index.cut ? `.${index.told}` : ""}`;
    this.box.setAttribute("aria-rowcount", this.rows.length);
    this.spacer.style.height = `${Math.max(1, this.rows.length) * ROW}px`;
    if (!quiet) this.box.scrollTop = 0;
    this.draw();
  }

  scrolled() {
    this.state.tops.set(location.hash, this.box.scrollTop);
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - 6);
    const count = Math.ceil((this.box.clientHeight || 600) / ROW) + 12;
    this.inside.style.transform = `translateY(${first * ROW}px)`;
    show(this.inside, this.rows.slice(first, first + count).map((row, place) => this.row(row, first + place)));
    clearTimeout(this.rest);
    this.rest = setTimeout(() => this.state.is(this.box) && this.picture(), REST_MS);
  }

  // Asks for the last screens of the episodes on the screen; those that were shown before are kept.
  picture() {
    for (const place of this.inside.querySelectorAll(".thumb:empty")) {
      const src = image(this.run, place.dataset.key, Number(place.dataset.step));
      if (!src) continue;
      const shot = el("img", { src, alt: "", decoding: "async", on: { error: () => shot.remove() } });
      this.thumbs.set(place.dataset.key, shot);
      if (this.thumbs.size > THUMBS) this.thumbs.delete(this.thumbs.keys().next().value);
      place.append(shot);
    }
  }

  row(row, place) {
    const index = this.state.index(this.run);
    const cell = (content, title) => el("span", { role: "cell", class: "cell", title }, content);
    const name = index.word("instruction", row) || index.word("task", row);
    const key = index.key(row);
    const address = link("episode", {}, this.run, key);
    const took = index.number("seconds", row);
    const landed = index.number("time", row);
    return el(
      "div",
      { class: "item grid", role: "row", "aria-rowindex": place + 1 },
      el("span", { role: "cell", class: "thumb", "data-key": key, "data-step": index.number("steps", row) }, this.thumbs.get(key)),
      cell(`${index.number("iteration", row)}${index.word("purpose", row) === "train" ? "" : " eval"}`),
      cell(el("a", { href: address, "data-row": row }, name || "(without a name)"), name),
      cell(badge(index.success(row), this.rated)),
      cell(short(index.number("reward", row))),
      cell(`${index.number("steps", row)}${index.flags.truncated[row] ? " (cut)" : ""}`),
      cell(`${index.word("worker", row)} / ${index.number("slot", row)}`, index.word("worker", row)),
      cell(String(index.number("policy_version", row))),
      cell(took === null ? "–" : seconds(took)),
      cell(clock(landed), when(landed)),
      cell(index.word("trouble", row), index.word("trouble", row)),
    );
  }

  key(event) {
    const links = [...this.inside.querySelectorAll("a")];
    const place = links.indexOf(document.activeElement);
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    if (step === undefined || !links.length) return null;
    return () => {
      const row = place < 0 ? this.rows[Math.ceil(this.box.scrollTop / ROW)] : Number(links[place].dataset.row);
      const next = place < 0 ? row : this.rows[this.rows.indexOf(row) + step];
      if (next === undefined) return;
      const top = this.rows.indexOf(next) * ROW;
      if (top < this.box.scrollTop) this.box.scrollTop = top;
      else if (top + ROW > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + ROW - this.box.clientHeight;
      this.draw();
      this.inside.querySelector(`a[data-row="${next}"]`)?.focus({ preventScroll: true });
    };
  }
}
