// The address of a view: `#/name/argument?filter=value`. Every view and every filter can be linked and goes back and forth.

/** Return the view that the address names. */
export function current() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const [name, ...args] = path.split("/").map(decoded);
  return { name: name || "overview", args, query: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Return the address of a view. Empty filters are left out. */
export function href(name, args = [], query = {}) {
  const parameters = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== undefined));
  const text = parameters.toString();
  return `#/${[name, ...args].map((part) => encodeURIComponent(part)).join("/")}${text ? `?${text}` : ""}`;
}

/** Change filters of the view shown, without an entry in the browser's history. */
export function refine(route, changes) {
  history.replaceState(null, "", href(route.name, route.args, { ...route.query, ...changes }));
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}
