/** Who the reader is: a token and its name, kept for this tab only, and what they allow. */

const KEY = "ravnest.token";
const NAME_KEY = "ravnest.name";
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
    /** Whom the server takes the token for. */
    this.name = storage.getItem(NAME_KEY) ?? "";
  }

  get role() {
    return roleOf(this.token);
  }

  /**
   * A requester only their own, by the name and role of their token, as the server has it.
   * @param {import("../types.js").JobView} job
   */
  maySteer(job) {
    if (this.role === "operator") return true;
    return this.role === "requester" && job.owner_role === this.role && job.owner === this.name;
  }

  get maySteerProviders() {
    return this.role === "operator";
  }

  get mayMakeTokens() {
    return this.role === "operator";
  }

  /**
   * @param {string} token
   * @param {string} name
   */
  signIn(token, name) {
    this.token = token;
    this.name = name;
    this.storage.setItem(KEY, token);
    this.storage.setItem(NAME_KEY, name);
    this.dispatchEvent(new Event("change"));
  }

  signOut() {
    this.token = this.name = "";
    this.storage.removeItem(KEY);
    this.storage.removeItem(NAME_KEY);
    this.dispatchEvent(new Event("change"));
  }

  /** @returns {Record<string, string>} */
  headers() {
    return this.token ? { Authorization: `Bearer ${this.token}` } : {};
  }
}
