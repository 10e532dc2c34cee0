// Elements whose texts are text nodes: nothing that a run says becomes markup.

const SVG = "http://www.w3.org/2000/svg";
const SAFE = /^(class|id|type|role|tabindex|for|name|value|min|max|step|placeholder|title|disabled|checked|hidden|width|height|alt|list|aria-[a-z]+|data-[a-z]+|scope|colspan|open|autocomplete|spellcheck|loading|decoding)$/;

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (name === "style") for (const [key, each] of Object.entries(value)) made.style.setProperty(key, each);
    else if (name === "href" && String(value).startsWith("#")) made.setAttribute("href", value);
    else if (name === "src" && /^(api\/image\?|data:image\/(png|jpeg);base64,)/.test(value)) made.setAttribute("src", value);
    else if (SAFE.test(name)) made.setAttribute(name, value === true ? "" : value);
    else throw new Error(`the attribute ${name} is not allowed`);
  }
  return fill(made, children);
}

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  return fill(made, children);
}

function fill(made, children) {
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export function show(place, ...children) {
  place.replaceChildren();
  fill(place, children);
}

// Shows in place of what was there; what was scrolled sideways stays so, and what had the focus keeps it.
export function renew(place, ...children) {
  const regions = () => [...place.querySelectorAll("[role=region]")];
  const reached = () => [...place.querySelectorAll("a, button, input, select, [tabindex]")];
  const lefts = regions().map((each) => each.scrollLeft);
  const focused = reached().indexOf(document.activeElement);
  show(place, children);
  regions().forEach((each, at) => (each.scrollLeft = lefts[at] ?? 0));
  if (focused >= 0) reached()[focused]?.focus({ preventScroll: true });
}

// A table of fixed names: unlike {}, it has none that it was not given, such as "constructor".
export function table(entries) {
  return Object.assign(Object.create(null), entries);
}

export function short(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e12) return value.toLocaleString("en");
  return Math.abs(value) >= 1e6 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(Number(value.toPrecision(digits)));
}

export const percent = (share) => (share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`);

// Nothing for an environment in which no episode is a success or a failure.
export function badge(success, told = true) {
  if (!told) return el("span", { class: "soft" }, "–");
  return el("span", { class: `badge ${success ? "good" : "bad"}` }, success ? "✓ success" : "✗ failure");
}

export function seconds(value) {
  if (value >= 5400) return `${short(value / 3600, 2)} h`;
  return value >= 90 ? `${short(value / 60, 2)} min` : `${short(value, 2)} s`;
}

const tip = document.getElementById("tip");

export function hint(text, event) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.min(event.clientY + 16, window.innerHeight - tip.offsetHeight - 8)}px`;
}

export const when = (time) => (typeof time === "number" ? new Date(time * 1000).toLocaleString("en-GB") : "–");

// The time of day, with the day unless it is today's.
export function clock(time) {
  if (typeof time !== "number") return "–";
  const at = new Date(time * 1000);
  const day = at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} `;
  return `${day}${at.toLocaleTimeString("en-GB")}`;
}

// A head of a table whose columns sort it: titles are [name, title]; order is a name, with a minus for the other way.
export function sortable(titles, order, choose) {
  const head = ([name, title]) => {
    if (!name) return el("th", { scope: "col" }, title);
    const now = order === name ? "ascending" : order === `-${name}` ? "descending" : null;
    const sign = now === "ascending" ? " ↑" : now ? " ↓" : "";
    return el("th", { scope: "col", "aria-sort": now }, el("button", { type: "button", class: "sort", "data-name": name, on: { click: () => choose(order === name ? `-${name}` : name) } }, `${title}${sign}`));
  };
  return el("thead", {}, el("tr", {}, titles.map(head)));
}

// Sorts rows by what ``value`` returns of them; what is not known comes last.
export function sorted(rows, order, value) {
  const side = order.startsWith("-") ? -1 : 1;
  const name = order.replace("-", "");
  const known = (each) => each !== null && each !== undefined && !Number.isNaN(each);
  return [...rows].sort((a, b) => {
    const [left, right] = [value(a, name), value(b, name)];
    if (!known(left) || !known(right)) return Number(known(right)) - Number(known(left));
    return side * (left < right ? -1 : left > right ? 1 : 0);
  });
}

// Arrow keys that lead through the links of a table.
export function walk(place, selector, event) {
  const side = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
  const links = [...place.querySelectorAll(selector)];
  if (!side || !links.length) return null;
  return () => links[Math.min(links.length - 1, Math.max(0, links.indexOf(document.activeElement) + side))].focus();
}

// Lines to copy: a click on the button puts them on the clipboard, or selects them where there is none.
export function copyable(title, text) {
  const code = el("pre", { tabindex: 0, role: "region", "aria-label": title }, text);
  const done = (word) => (button.textContent = word);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      done("Copied");
    } catch {
      getSelection().selectAllChildren(code);
      done("Selected");
    }
  };
  const button = el("button", { type: "button", class: "small", "aria-label": `copy: ${title}`, on: { click: copy } }, "Copy");
  return el("div", { class: "copyable" }, el("div", { class: "copy-head" }, el("span", { class: "soft" }, title), button), code);
}

// A word as a shell takes it literally, without signs that steer a terminal.
export function shellWord(text) {
  const plain = String(text).replace(/[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, "?");
  return /^[\w@%+=:,./-]+$/.test(plain) ? plain : `'${plain.replaceAll("'", "'\\''")}'`;
}

// A text as Python and JSON write it.
export const pythonText = (text) => JSON.stringify(String(text)).replace(/[\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
