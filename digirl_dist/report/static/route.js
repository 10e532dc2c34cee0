// Deep links: every view and every filter is in the address, behind the #.

export function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...parts] = path.split("/").map(decode);
  return { view: view || "runs", parts, query: Object.fromEntries(new URLSearchParams(query)) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return "";
  }
}

export function link(view, query = {}, ...parts) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const words = new URLSearchParams(given).toString();
  return `#/${[view, ...parts].map(encodeURIComponent).join("/")}${words ? `?${words}` : ""}`;
}

export function go(view, query = {}, ...parts) {
  location.hash = link(view, query, ...parts);
}

// Changes the address of this view without another entry in the history; not once somebody has gone elsewhere.
export function note(view, query, ...parts) {
  const now = route();
  if (link(now.view, {}, ...now.parts) !== link(view, {}, ...parts)) return;
  history.replaceState(null, "", link(view, query, ...parts));
}
