/** Elements without HTML strings: whatever others have named themselves stays text. */

const SVG = "http://www.w3.org/2000/svg";
const FORBIDDEN = /^(style|innerHTML|outerHTML|srcdoc|on.*)$/i;

/** @typedef {Node|string|number|null|undefined|false|Child[]} Child */
/**
 * `class`, `on` (listeners by name) and attributes; true sets an empty attribute, false none.
 * @typedef {Record<string, any>} Props
 */

/**
 * @param {Element} element
 * @param {Props} props
 * @param {Child[]} children
 */
function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (FORBIDDEN.test(name)) {
      throw new Error(`${name} is not set on elements here`);
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, String(value));
    }
  }
  append(element, children);
}

/**
 * @param {Node} parent
 * @param {Child[]} children
 */
export function append(parent, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(parent, child);
    else if (child instanceof Node) parent.appendChild(child);
    else if (child !== null && child !== undefined && child !== false) {
      parent.appendChild(document.createTextNode(String(child)));
    }
  }
}

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Props} [props]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  fill(element, props, children);
  return element;
}

/**
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Props} [props]
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function svg(tag, props = {}, ...children) {
  const element = /** @type {SVGElementTagNameMap[K]} */ (document.createElementNS(SVG, tag));
  fill(element, props, children);
  return element;
}

/**
 * @param {Node} node
 * @param {string|number} text
 */
export function setText(node, text) {
  if (node.textContent !== String(text)) node.textContent = String(text);
}

/**
 * @param {Element} element
 * @param {string} name
 * @param {string|number|null} value null takes the attribute away
 */
export function setAttribute(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

/**
 * A custom property; how it looks is up to the style sheet.
 * @param {HTMLElement|SVGElement} element
 * @param {string} name
 * @param {string|number} value
 */
export function setProperty(element, name, value) {
  if (element.style.getPropertyValue(name) !== String(value)) {
    element.style.setProperty(name, String(value));
  }
}

/**
 * Brings the children of a parent into this order, moving only what is out of place.
 * @param {Element} parent
 * @param {Node[]} wanted
 */
export function arrange(parent, wanted) {
  let next = parent.firstChild;
  for (const node of wanted) {
    if (node === next) next = next.nextSibling;
    else parent.insertBefore(node, next);
  }
  while (next) {
    const following = next.nextSibling;
    parent.removeChild(next);
    next = following;
  }
}
