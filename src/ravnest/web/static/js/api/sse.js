/** Server-sent events out of pieces of text. EventSource cannot send a token, so we read ourselves. */

/**
 * @param {(event: string, data: string) => void} onEvent
 * @returns {(text: string) => void} to be fed with the text as it comes, in any pieces
 */
export function eventParser(onEvent) {
  let rest = "";
  let event = "";
  /** @type {string[]} */
  let data = [];

  /** @param {string} line */
  function take(line) {
    if (line === "") {
      if (data.length) onEvent(event || "message", data.join("\n"));
      event = "";
      data = [];
      return;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") event = value;
    else if (field === "data") data.push(value);
  }

  return (text) => {
    // A line may be cut anywhere; a \r at the very end may be half of a \r\n.
    rest += text;
    let begin = 0;
    for (;;) {
      let end = begin;
      while (end < rest.length && rest[end] !== "\n" && rest[end] !== "\r") end += 1;
      if (end === rest.length || (rest[end] === "\r" && end + 1 === rest.length)) break;
      take(rest.slice(begin, end));
      begin = end + (rest[end] === "\r" && rest[end + 1] === "\n" ? 2 : 1);
    }
    rest = rest.slice(begin);
  };
}
