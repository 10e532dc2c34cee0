// Elements whose texts are text nodes: nothing that a run says becomes markup.

const SVG = "http://www.w3.org/2000/svg";
const SAFE = /^(class|id|type|role|tabindex|for|name|value|min|max|step|placeholder|title|disabled|checked|hidden|width|height|alt|list|aria-[a-z]+|data-[a-z]+|scope|colspan|open|autocomplete|spellcheck)$/;

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

// Shows in place of what was there; what was scrolled sideways stays so.
export function renew(place, ...children) {
  const regions = () => [...place.querySelectorAll("[role=region]")];
  const lefts = regions().map((each) => each.scrollLeft);
  show(place, children);
  regions().forEach((each, at) => (each.scrollLeft = lefts[at] ?? 0));
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

export function badge(success) {
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
