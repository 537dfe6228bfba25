/** Who the reader is: a token and whom the server takes it for, kept for this tab only. */

const KEY = "ravnest.session";
const SERVER = "ravnest.server";
const NOBODY = { token: "", role: "", name: "" };

/**
 * Says "change" when the reader signs in or out. What the page hides or shows by the role protects
 * nothing: the server decides.
 */
export class Session extends EventTarget {
  /** @param {Storage} storage */
  constructor(storage) {
    super();
    this.storage = storage;
    const { token, role, name } = { ...NOBODY, ...JSON.parse(storage.getItem(KEY) ?? "{}") };
    this.token = token;
    this.role = role;
    this.name = name;
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

  /** @param {{token: string, role: string, name: string}} reader */
  signIn(reader) {
    this.storage.setItem(KEY, JSON.stringify(reader));
    this.#become(reader);
  }

  /** Where the server is. Not where this page is from, if `ravnest dashboard` has opened it. */
  get server() {
    return this.storage.getItem(SERVER) ?? location.origin;
  }

  set server(address) {
    this.storage.setItem(SERVER, address);
  }

  signOut() {
    this.storage.removeItem(KEY);
    this.#become(NOBODY);
  }

  /** @param {{token: string, role: string, name: string}} reader */
  #become({ token, role, name }) {
    this.token = token;
    this.role = role;
    this.name = name;
    this.dispatchEvent(new Event("change"));
  }

  /** @returns {Record<string, string>} */
  headers() {
    return this.token ? { Authorization: `Bearer ${this.token}` } : {};
  }
}
