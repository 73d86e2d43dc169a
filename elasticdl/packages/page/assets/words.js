"use strict";
// Numbers and times as people read them, and elements that hold text. Text that comes from a job goes
// through `textContent` alone: whatever a name holds, it is shown and never run.
const words = (() => {
  const number = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

  function count(value) {
    return value === null || value === undefined ? "–" : number.format(value);
  }

  function decimal(value, digits = 5) {
    if (value === null || value === undefined) return "–";
    return Number(value.toPrecision(digits)).toString();
  }

  function percent(share, digits = 1) {
    return share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)}\u00a0%`;
  }

  function duration(seconds) {
    if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
    const all = Math.max(0, Math.round(seconds));
    const [h, m, s] = [Math.floor(all / 3600), Math.floor(all / 60) % 60, all % 60];
    const two = (n) => String(n).padStart(2, "0");
    return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
  }

  function bytes(value) {
    if (!value) return "–";
    const units = ["B", "kB", "MB", "GB", "TB"];
    let at = 0;
    while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
    return `${value < 10 && at ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
  }

  function rate(value) {
    return value ? `${bytes(value)}/s` : "–";
  }

  function clock(time) {
    return new Date(1000 * time).toLocaleTimeString([], { hour12: false });
  }

  function element(tag, text, className) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  // A paragraph whose flags stay on one line each.
  function prose(text) {
    const made = element("p");
    for (const part of text.split(/(--[a-z][\w=-]*)/)) made.append(part.startsWith("--") ? element("span", part, "flag") : part);
    return made;
  }

  // Rows are arrays of texts, or of elements. `text`: which columns are words.
  function table(heads, rows, text = [0]) {
    const made = element("table");
    const head = made.createTHead().insertRow();
    heads.forEach((name, at) => {
      const th = element("th", name, text.includes(at) ? "text" : "");
      th.scope = "col";
      head.append(th);
    });
    const body = made.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      row.forEach((cell, at) => {
        const td = line.insertCell();
        if (text.includes(at)) td.className = "text";
        td.append(cell instanceof Node ? cell : String(cell));
      });
    }
    return made;
  }

  // A table that is made when it is opened, and again with each change while it is open.
  function behind(parent, make) {
    let details = parent.querySelector(":scope > details");
    if (!details) {
      details = element("details");
      details.append(element("summary", "Table"), element("div", undefined, "table"));
      details.lastChild.tabIndex = 0;
      details.addEventListener("toggle", () => details.fill());
      parent.append(details);
    }
    details.fill = () => {
      if (details.open) details.lastChild.replaceChildren(make());
    };
    details.fill();
  }

  function empty(parent, text) {
    parent.replaceChildren(element("p", text, "empty"));
  }

  return { count, decimal, percent, duration, bytes, rate, clock, element, prose, table, behind, empty };
})();
