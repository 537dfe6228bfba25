/** Puts the parts together: session, stream, store, frame, and the page the address names. */

import { Http } from "./api/http.js";
import { LiveFeed } from "./api/live.js";
import { Session } from "./api/session.js";
import { Frame } from "./frame.js";
import { eventsPage } from "./pages/events.js";
import { jobPage } from "./pages/job.js";
import { overviewPage } from "./pages/overview.js";
import { signInByLink } from "./signin.js";
import { Store } from "./store.js";
import { startClock } from "./ui/clock.js";
import { startTheme } from "./ui/theme.js";

startTheme();
const session = new Session(sessionStorage);
const store = new Store();
/** @type {import("./types.js").Context} */
const context = { session, store, http: new Http(session) };
startClock(() => store.now());

/** @type {import("./types.js").Page|null} */
let page = null;

/** @returns {import("./types.js").Page} */
function pageOfAddress() {
  const [, first, second] = location.hash.split("/");
  if (first === "jobs" && second) return jobPage(context, decoded(second));
  if (first === "events") return eventsPage(context);
  return overviewPage(context);
}

/**
 * Whoever has typed something else gets the page that says that there is no such job.
 * @param {string} part of the address
 */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function showPage() {
  page?.close();
  page = null;
  if (!store.server) return;
  page = pageOfAddress();
  frame.show(page);
}

const frame = new Frame(context, () => feed.tryNow());
const feed = new LiveFeed({
  session,
  onState: (state) => frame.showConnection(state),
  onEvent(event, data) {
    if (event !== "overview" && event !== "update") return;
    const change = event === "overview" ? store.replace(data) : store.apply(data);
    frame.update();
    if (page) page.update(change);
    else showPage();
  },
});

await signInByLink(session);
session.addEventListener("change", () => {
  showPage(); // controls come and go with the role
  feed.restart();
});
window.addEventListener("hashchange", () => {
  showPage();
  frame.toTop();
});
feed.restart();
