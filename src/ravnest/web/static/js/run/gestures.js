/** Keys, wheel and pointer on a canvas that shows time: what the reader wants by them. */

/**
 * @typedef {object} Wishes
 * @property {() => void} toggle hold still, or go on
 * @property {(share: number) => void} move by a share of what is shown, to the right if positive
 * @property {(factor: number, around: number) => void} zoom around a share of the width
 * @property {(event: PointerEvent) => void} point at something
 * @property {() => void} leave
 */

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Wishes} wishes
 */
export function listenTo(canvas, wishes) {
  /** @type {Record<string, () => void>} */
  const keys = {
    " ": wishes.toggle,
    ArrowLeft: () => wishes.move(-1 / 8),
    ArrowRight: () => wishes.move(1 / 8),
    "+": () => wishes.zoom(1 / 1.5, 0.5),
    "-": () => wishes.zoom(1.5, 0.5),
  };
  canvas.addEventListener("keydown", (event) => {
    const action = keys[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // plain wheels scroll the page
      event.preventDefault();
      wishes.zoom(event.deltaY > 0 ? 1.25 : 0.8, event.offsetX / canvas.clientWidth);
    },
    { passive: false },
  );
  let dragged = /** @type {number|null} */ (null);
  canvas.addEventListener("pointerdown", (event) => {
    dragged = event.clientX;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (dragged !== null && event.buttons && Math.abs(event.clientX - dragged) > 2) {
      wishes.move((dragged - event.clientX) / canvas.clientWidth);
      dragged = event.clientX;
    }
    wishes.point(event);
  });
  canvas.addEventListener("pointerup", () => (dragged = null));
  canvas.addEventListener("pointercancel", () => (dragged = null));
  canvas.addEventListener("pointerleave", wishes.leave);
}
