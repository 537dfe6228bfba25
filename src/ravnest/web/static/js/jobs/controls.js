/** What may be done with a job in its state, asked and sent. */

import { jobPath } from "../api/http.js";
import { h } from "../dom.js";
import { confirmDialog } from "../ui/dialog.js";
import { attempt } from "../ui/toast.js";

/** @typedef {{text: string, done: string, kind?: string, ask?: {text: string, yes: string}}} Action */

/** @type {Record<string, Action>} */
const ACTIONS = {
  start: { text: "Start", done: "is being started", kind: "primary" },
  pause: { text: "Pause", done: "pauses: machines keep their parts and wait" },
  continue: { text: "Continue", done: "goes on", kind: "primary" },
  resume: { text: "Resume", done: "is taken up again with the weights it has", kind: "primary" },
  stop: {
    text: "Stop",
    done: "is being stopped",
    kind: "danger",
    ask: {
      text: "Machines save what they have and go back to the pool. The job can be resumed later, with a new run, from the weights that were saved.",
      yes: "Stop it",
    },
  },
  delete: {
    text: "Delete",
    done: "has been deleted",
    kind: "danger",
    ask: {
      text: "Its model, data, curves and results are deleted from the server. This cannot be taken back.",
      yes: "Delete it",
    },
  },
};

/** @type {Record<string, string[]>} */
const POSSIBLE = {
  waiting: ["stop"],
  planning: ["stop"],
  planned: ["stop", "start"],
  preparing: ["stop"],
  running: ["stop", "pause"],
  paused: ["stop", "continue"],
  stopping: [],
  fusing: [],
  stopped: ["delete", "resume"],
  failed: ["delete", "resume"],
  done: ["delete"],
};

/**
 * @param {string} state
 * @returns {string[]}
 */
export const possibleActions = (state) => POSSIBLE[state] ?? [];

/**
 * @param {import("../types.js").Context} context
 * @param {import("../types.js").JobView} job
 */
export function jobControls(context, job) {
  return possibleActions(job.state).map((name) => {
    const action = /** @type {Action} */ (ACTIONS[name]);
    const button = h(
      "button",
      { class: `button ${action.kind ?? ""}`.trim(), type: "button", "data-action": name },
      action.text,
    );
    button.addEventListener("click", async () => {
      if (action.ask && !(await confirmDialog({ title: `${action.text} ${job.name}?`, ...action.ask }))) return;
      button.disabled = true;
      await attempt(
        () => context.http.post(`${jobPath(job.id)}/action`, { action: name }),
        `${job.name} ${action.done}`,
      );
      button.disabled = false;
    });
    return button;
  });
}
