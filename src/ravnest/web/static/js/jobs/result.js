/** The trained weights, fetched with the reader's token: a plain link could not show it. */

import { jobPath } from "../api/http.js";
import { h, setText } from "../dom.js";
import { bytes, percent } from "../format.js";
import { toast } from "../ui/toast.js";

/**
 * @param {import("../types.js").Context} context
 * @param {import("../types.js").JobView} job
 */
export function resultParts(context, job) {
  if (!job.result_bytes) return [];
  const size = h("span", { class: "soft" }, `Trained weights, ${bytes(job.result_bytes)}`);
  if (!context.session.maySteer(job)) {
    return [size, h("span", { class: "faint small" }, `Sign in as ${job.owner} or as an operator to download them.`)];
  }
  return [
    size,
    downloadButton(context, job, "safetensors", "Download .safetensors"),
    downloadButton(context, job, "pt", ".pt"),
  ];
}

/**
 * @param {import("../types.js").Context} context
 * @param {import("../types.js").JobView} job
 * @param {string} format
 * @param {string} text
 */
function downloadButton(context, job, format, text) {
  const button = h("button", { class: "button", type: "button", "data-format": format }, text);
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const response = await context.http.send(`${jobPath(job.id)}/result?format=${format}`);
      const blob = await readWithProgress(response, job.result_bytes, (share) => setText(button, percent(share)));
      save(blob, `${job.name.replace(/[^\w.-]+/g, "-")}.${format}`);
    } catch (error) {
      toast(`The download has failed: ${error instanceof Error ? error.message : error}`, "bad");
    }
    setText(button, text);
    button.disabled = false;
  });
  return button;
}

/**
 * @param {Response} response
 * @param {number} expected bytes, if the server does not say
 * @param {(share: number) => void} onProgress
 */
async function readWithProgress(response, expected, onProgress) {
  const total = Number(response.headers.get("Content-Length")) || expected;
  let seen = 0;
  const counted = response.body?.pipeThrough(
    new TransformStream({
      transform(chunk, controller) {
        seen += chunk.byteLength;
        onProgress(Math.min(1, seen / total));
        controller.enqueue(chunk);
      },
    }),
  );
  return new Response(counted).blob();
}

/**
 * @param {Blob} blob
 * @param {string} name
 */
function save(blob, name) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
