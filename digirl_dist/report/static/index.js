// The episodes of a run by columns, so that 100,000 of them are filtered at once.

import { short, table } from "./dom.js";

const NUMBERS = ["iteration", "ticket", "slot", "policy_version", "seed", "steps", "attempt", "reward", "time", "seconds"];
const FLAGS = ["success", "truncated"];
const WORDS = ["worker", "task", "instruction", "purpose", "trouble"];
const UNTOLD = 64;
const PREFIX = table({ train: "t", evaluate: "e", measure: "m" });

export class Index {
  constructor() {
    this.size = 0;
    this.unread = 1;
    this.cut = 0; // older episodes, which a report does not list
    this.numbers = Object.fromEntries(NUMBERS.map((name) => [name, new Float64Array(1024)]));
    this.flags = Object.fromEntries(FLAGS.map((name) => [name, new Uint8Array(1024)]));
    this.codes = Object.fromEntries(WORDS.map((name) => [name, new Uint32Array(1024)]));
    this.words = Object.fromEntries(WORDS.map((name) => [name, []]));
    this.known = Object.fromEntries(WORDS.map((name) => [name, new Map()]));
    this.places = new Map();
  }

  add(answer) {
    this.unread = answer.unread;
    this.cut = answer.cut ?? 0;
    if (answer.first > this.size || !answer.count) return false;
    const after = answer.first + answer.count;
    this.#grow(after);
    for (const name of NUMBERS) this.numbers[name].set(answer.columns[name].map((value) => (value === null ? NaN : value)), answer.first);
    for (const name of FLAGS) this.flags[name].set(answer.columns[name].map(Number), answer.first);
    for (const name of WORDS) {
      const codes = answer.columns[name].words.map((word) => this.#code(name, word ?? ""));
      this.codes[name].set(answer.columns[name].codes.map((code) => codes[code]), answer.first);
    }
    for (let row = answer.first; row < after; row++) this.places.set(this.key(row), row);
    const grown = after > this.size;
    this.size = Math.max(this.size, after);
    return grown;
  }

  // The row from which on the server is asked: of the newest rows, events may have come since.
  get wanted() {
    let first = this.size;
    while (first > 0 && this.size - first < UNTOLD && Number.isNaN(this.numbers.time[first - 1])) first--;
    return first;
  }

  #code(name, word) {
    let code = this.known[name].get(word);
    if (code === undefined) {
      code = this.words[name].push(word) - 1;
      this.known[name].set(word, code);
    }
    return code;
  }

  #grow(wanted) {
    for (const columns of [this.numbers, this.flags, this.codes]) {
      for (const [name, old] of Object.entries(columns)) {
        if (old.length >= wanted) continue;
        columns[name] = new old.constructor(Math.max(wanted, old.length * 2));
        columns[name].set(old);
      }
    }
  }

  number(name, row) {
    const value = this.numbers[name][row];
    return Number.isNaN(value) ? null : value;
  }

  word(name, row) {
    return this.words[name][this.codes[name][row]];
  }

  success(row) {
    return this.flags.success[row] === 1;
  }

  key(row) {
    const purpose = this.word("purpose", row);
    const of = purpose === "measure" ? `${this.numbers.policy_version[row]}.` : "";
    return `${PREFIX[purpose] || "t"}${of}${this.numbers.iteration[row]}.${this.numbers.ticket[row]}`;
  }

  row(key) {
    return this.places.get(key);
  }

  get told() {
    return this.cut ? ` Of ${short(this.cut + this.size)} episodes a report lists the newest ${short(this.size)}; digirl-dist view shows all.` : "";
  }

  // Rows that pass all filters, in the wanted order.
  filter(wanted) {
    const tests = this.#tests(wanted);
    const found = [];
    for (let row = 0; row < this.size; row++) if (tests.every((test) => test(row))) found.push(row);
    return this.#sorted(found, wanted.sort || "-iteration");
  }

  #tests(wanted) {
    const tests = [];
    for (const name of ["task", "worker", "purpose"]) {
      if (!wanted[name]) continue;
      const code = this.known[name].get(wanted[name]);
      const codes = this.codes[name];
      tests.push((row) => codes[row] === code);
    }
    if (wanted.outcome) {
      const success = Number(wanted.outcome === "success");
      tests.push((row) => this.flags.success[row] === success);
    }
    if (wanted.error === "trouble") tests.push((row) => this.codes.trouble[row] !== this.known.trouble.get(""));
    if (wanted.error === "truncated") tests.push((row) => this.flags.truncated[row] === 1);
    for (const name of ["iteration", "steps", "reward"]) {
      const [low, high] = [wanted[`${name}_from`], wanted[`${name}_to`]];
      const values = this.numbers[name];
      if (low !== undefined && low !== "") tests.push((row) => values[row] >= Number(low));
      if (high !== undefined && high !== "") tests.push((row) => values[row] <= Number(high));
    }
    if (wanted.text) tests.push(this.#contains(wanted.text.toLowerCase()));
    return tests;
  }

  #contains(text) {
    const names = ["task", "instruction", "trouble"];
    const hits = names.map((name) => this.words[name].map((word) => word.toLowerCase().includes(text)));
    return (row) => names.some((name, place) => hits[place][this.codes[name][row]]);
  }

  #sorted(found, order) {
    const down = order.startsWith("-");
    const asked = order.replace("-", "");
    const name = [NUMBERS, WORDS, FLAGS].some((names) => names.includes(asked)) ? asked : "iteration";
    const ranks = this.words[name] && rank(this.words[name]);
    const value = ranks ? (row) => ranks[this.codes[name][row]] : (row) => (this.flags[name] || this.numbers[name])[row];
    const side = down ? -1 : 1;
    const compare = (a, b) => side * (value(a) - value(b)) || this.numbers.iteration[b] - this.numbers.iteration[a] || this.numbers.ticket[a] - this.numbers.ticket[b];
    return found.sort(compare);
  }

  // Episodes that began alike: of one iteration, task and seed.
  group(row) {
    return this.#alike(row, ["iteration", "seed"]);
  }

  // Training and evaluation of the same task, the oldest policy first.
  history(row) {
    return this.#alike(row, []).sort((a, b) => this.numbers.policy_version[a] - this.numbers.policy_version[b]);
  }

  #alike(row, names) {
    const found = [];
    for (let other = 0; other < this.size; other++) {
      const same = this.codes.task[other] === this.codes.task[row] && this.codes.purpose[other] === this.codes.purpose[row];
      if (same && names.every((name) => this.numbers[name][other] === this.numbers[name][row])) found.push(other);
    }
    return found;
  }
}

function rank(words) {
  const order = words.map((_, code) => code).sort((a, b) => (words[a] < words[b] ? -1 : 1));
  const ranks = new Array(words.length);
  order.forEach((code, place) => (ranks[code] = place));
  return ranks;
}
