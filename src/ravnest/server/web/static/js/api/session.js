/** Who the reader is: a token, kept for this tab only, and what its role allows. */

const KEY = "ravnest.token";
const PREFIX = "rav1_";
const ROLES = ["provider", "requester", "viewer", "operator"];

/**
 * The role that a token says it has; null if this is no token. Whether the server agrees is another
 * matter: what the page hides or shows protects nothing.
 * @param {string} token
 * @returns {string|null}
 */
export function roleOf(token) {
  if (!token.startsWith(PREFIX)) return null;
  try {
    const body = token.slice(PREFIX.length).replaceAll("-", "+").replaceAll("_", "/");
    return ROLES[atob(body).charCodeAt(0)] ?? null;
  } catch {
    return null;
  }
}

/** Says "change" when the reader signs in or out. */
export class Session extends EventTarget {
  /** @param {Storage} storage */
  constructor(storage) {
    super();
    this.storage = storage;
    this.token = storage.getItem(KEY) ?? "";
  }

  get role() {
    return roleOf(this.token);
  }

  get maySteerJobs() {
    return this.role === "operator" || this.role === "requester";
  }

  get maySteerProviders() {
    return this.role === "operator";
  }

  get mayMakeTokens() {
    return this.role === "operator";
  }

  /** @param {string} token */
  signIn(token) {
    this.token = token;
    this.storage.setItem(KEY, token);
    this.dispatchEvent(new Event("change"));
  }

  signOut() {
    this.token = "";
    this.storage.removeItem(KEY);
    this.dispatchEvent(new Event("change"));
  }

  /** @returns {Record<string, string>} */
  headers() {
    return this.token ? { Authorization: `Bearer ${this.token}` } : {};
  }
}
