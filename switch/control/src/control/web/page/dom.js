// Elements of the page. Text from the network becomes text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function build(element, attributes, children) {
  set(element, attributes);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Sets attributes; null removes one, a function becomes a listener.
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === null || value === false) element.removeAttribute(name);
    else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value === true ? "" : value);
  }
}

export function html(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

// Makes the children of `parent` those of `items`, keeps the elements of keys that stay, and so the keyboard's focus.
export function keyed(parent, items, key, make, update) {
  const known = (parent.keyed ??= new Map());
  const seen = new Set();
  let place = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    seen.add(name);
    let element = known.get(name);
    if (!element) {
      element = make(item);
      known.set(name, element);
    }
    update(element, item);
    if (element === place) place = place.nextSibling;
    else parent.insertBefore(element, place);
  }
  for (const [name, element] of known) {
    if (!seen.has(name)) {
      element.remove();
      known.delete(name);
    }
  }
}

export function portLink(name) {
  return `#/port/${encodeURIComponent(name)}`;
}

export function table(headings, numeric) {
  const body = html("tbody");
  const cell = (heading, index) => html("th", { scope: "col", class: index >= numeric ? "number" : null }, heading);
  return { body, element: html("table", {}, html("thead", {}, html("tr", {}, ...headings.map(cell))), body) };
}
