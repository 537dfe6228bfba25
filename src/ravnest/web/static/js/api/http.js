/** Requests to the server: JSON both ways, and its problems as errors that can be shown. */

const BASE = "/api/v1";
const PATIENCE_MS = 30_000;

/** An answer that is not a success, in the server's words. */
export class Refusal extends Error {
  /**
   * @param {number} status
   * @param {string} code
   * @param {string} message
   */
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/**
 * @param {Response} response
 * @returns {Promise<Refusal>}
 */
export async function refusalOf(response) {
  try {
    const { error, code } = await response.json();
    return new Refusal(response.status, String(code), String(error));
  } catch {
    return new Refusal(response.status, "unknown", `the server answered ${response.status}`);
  }
}

export class Http {
  /** @param {import("./session.js").Session} session */
  constructor(session) {
    this.session = session;
  }

  /**
   * @param {string} path
   * @param {RequestInit} [options]
   * @returns {Promise<Response>}
   */
  async send(path, options = {}) {
    const headers = { ...this.session.headers(), ...options.headers };
    const response = await fetch(BASE + path, { ...options, headers, cache: "no-store" });
    if (!response.ok) throw await refusalOf(response);
    return response;
  }

  /**
   * @param {string} path
   * @param {AbortSignal} [signal]
   * @returns {Promise<any>}
   */
  async get(path, signal) {
    const deadline = AbortSignal.timeout(PATIENCE_MS);
    const response = await this.send(path, {
      signal: signal ? AbortSignal.any([signal, deadline]) : deadline,
    });
    return response.json();
  }

  /**
   * @param {string} path
   * @param {object} body
   * @returns {Promise<any>}
   */
  async post(path, body) {
    const response = await this.send(path, {
      method: "POST",
      body: JSON.stringify(body),
      headers: { "Content-Type": "application/json" },
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    const text = await response.text();
    return text ? JSON.parse(text) : null;
  }
}

/** @param {string} id */
export const jobPath = (id) => `/jobs/${encodeURIComponent(id)}`;
