"use strict";
// The parts of the page that are words and small bars.
const panels = (() => {
  const by = (id) => document.getElementById(id);
  const MANY = 100, SECONDS_BETWEEN_MANY = 5;
  let membersShown = -Infinity;

  function summary() {
    const p = store.picture;
    by("name").textContent = p.job_name || "elasticdl";
    const state = store.ended !== null ? store.phase : p.status || store.phase;
    by("state").textContent = state;
    by("state").className = `badge ${state}`;
    document.title = `${state}: ${p.job_name || "elasticdl"}`;
    by("progress").value = p.records_total ? p.records_done / p.records_total : 0;
    by("message").textContent = store.message;
    by("message").className = store.ended !== null && store.phase === "finished" ? "fact" : "note";
    by("overfitting").textContent = store.overfitting;
    by("h-summary").textContent = store.ended !== null ? "At the end" : "Now";
    by("progress").hidden = store.ended !== null && state === "finished";
    const isLoading = p.status === "running" && !p.records_done && !store.message;
    const tiles = [
      ["records", p.records_total ? `${words.count(p.records_done)} of ${words.count(p.records_total)}` : "–"],
      ["records/s", isLoading ? "loading the model" : p.records_per_second < 10 ? words.decimal(p.records_per_second, 2) : words.count(p.records_per_second)],
      ["time left", left(p)],
      ["time", store.grid.began === null ? "–" : words.duration((store.ended ?? store.latest) - store.grid.began)],
      ["epoch", p.num_epochs ? `${Math.min(p.epoch + 1, p.num_epochs)} of ${p.num_epochs}` : "–"],
      ["tasks", p.tasks_done === undefined ? "–" : `${words.count(p.tasks_done)} done, ${p.tasks_doing} under way, ${words.count(p.tasks_todo)} to do`],
      ["loss", words.decimal(p.loss)],
      ["updates", words.count(p.model_version)],
      ["workers", `${p.workers ?? "–"}${lost("worker")}`],
      ["ps replicas", `${p.ps_replicas ?? "–"}${lost("ps")}`],
      ["goodput", store.goodput && store.goodput.workers.seconds ? words.percent(store.goodput.workers.share) : "–"],
    ];
    for (const [name, text] of [...stream(p), ...exported(), ...best()]) tiles.push([name, text]);
    by("tiles").replaceChildren(...tiles.filter(([name]) => store.ended === null || name !== "time left").map(([name, value]) => {
      const tile = words.element("div");
      tile.append(words.element("dt", name), words.element("dd", value));
      return tile;
    }));
  }

  function stream(p) {
    if (p.lag === null || p.lag === undefined) return [];
    const tiles = [["lag", words.count(p.lag)]];
    if (p.watermark) {
      const behind = Math.max(0, (store.ended ?? store.latest) - p.watermark);
      tiles.push(["event time", `${words.duration(behind)} behind`]);
    }
    if (p.num_late) tiles.push(["late", words.count(p.num_late)]);
    return tiles;
  }

  function exported() {
    const newest = (store.points.export || []).at(-1);
    if (newest === undefined) return [];
    const age = Math.max(0, (store.ended ?? store.latest) - newest.time);
    return [["export", `version ${newest.number}, ${words.duration(age)} old`]];
  }

  function best() {
    return store.bests.slice(0, 3).map((one) => [`best ${one.metric}`, [
      `${words.decimal(one.value, 4)} at ${words.duration(store.since(one.time))}`,
      ...(one.now === null ? [] : [`now ${words.decimal(one.now, 4)}`]),
      ...(one.version === null ? [] : [`checkpoint ${one.version}`]),
    ].join(", ")]);
  }

  function lost(role) {
    const number = store.lost[role];
    return number ? ` (${number} lost so far)` : "";
  }

  // From the throughput of the last minute; its spread says how sure that is.
  function left(p) {
    if (store.ended !== null) return "none";
    const rest = p.records_total - p.records_done;
    const cells = store.throughput.slice(0, -1).slice(-Math.max(5, Math.ceil(60 / store.grid.step))).filter((x) => x > 0);
    if (!(rest > 0) || cells.length < 3) return "–";
    const mean = cells.reduce((a, b) => a + b, 0) / cells.length;
    const spread = Math.sqrt(cells.reduce((a, b) => a + (b - mean) ** 2, 0) / (cells.length - 1) / cells.length);
    const seconds = rest / mean;
    return `${words.duration(seconds)} ± ${words.duration(2 * seconds * spread / mean)}`;
  }

  function goodput() {
    const parent = by("goodput");
    const found = store.goodput && store.goodput.workers;
    if (!found || !found.seconds) {
      words.empty(parent, "No worker has said yet what it did.");
      return;
    }
    const parts = [["training that counted", found.good, 1], ...Object.entries(found.losses).map(([label, seconds]) => [label, seconds, store.labels.indexOf(label)])];
    const bar = words.element("div", undefined, "bar");
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", `${words.percent(found.share)} of the workers' seconds were spent on training that counted`);
    for (const [label, seconds, number] of parts) {
      const part = words.element("span");
      part.style.flexGrow = seconds / found.seconds;
      part.style.background = number < 0 ? "var(--bad)" : `var(--label-${number})`;
      part.title = label;
      bar.append(part);
    }
    const bound = store.bound ? [words.prose(`${store.bound.text} ${store.bound.advice}`)] : [];
    parent.replaceChildren(bar, ...bound, words.table(["where", "seconds", "share"],
      parts.map(([label, seconds]) => [label, words.decimal(seconds, 4), words.percent(seconds / found.seconds)])));
  }

  function dips() {
    const parent = by("dips");
    if (!store.dips.length) {
      words.empty(parent, "The throughput has not dipped.");
      return;
    }
    const rows = [...store.dips].reverse().map((dip) => [
      words.duration(store.since(dip.begin)), `${words.decimal(dip.end - dip.begin, 3)} s`, `${words.percent(dip.share, 0)} of usual`, dip.cause]);
    const box = words.element("div", undefined, "scroll");
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "Dips and their causes");
    box.append(words.table(["at", "for", "throughput", "cause"], rows, [0, 3]));
    parent.replaceChildren(box);
  }

  function events() {
    if (!store.facts.length) {
      words.empty(by("events"), "Nothing has happened yet.");
      return;
    }
    const rows = [...store.facts].reverse().slice(0, 300).map((fact) => [
      words.duration(store.since(fact.time)), words.clock(fact.time), fact.event, fact.text]);
    by("events").replaceChildren(words.table(["at", "clock", "event", "what happened"], rows, [0, 2, 3]));
  }

  function tasks() {
    const parent = by("tasks");
    const map = store.picture.task_map;
    if (!map) {
      words.empty(parent, "No task has been handed out yet.");
      return;
    }
    const holders = new Map();
    for (const [part, worker] of store.picture.doing || []) holders.set(part, [...(holders.get(part) || []), worker]);
    const box = words.element("div", undefined, "map");
    let done = 0;
    [...map].forEach((letter, at) => {
      const share = letter === "*" ? 1 : Number(letter) / 10;
      done += share;
      const part = words.element("span");
      part.style.background = `color-mix(in srgb, var(--label-1) ${100 * share}%, var(--line))`;
      const by_whom = holders.has(at) ? `, worker ${holders.get(at).join(", ")} at it` : "";
      part.title = `part ${at + 1}: ${words.percent(share, 0)} done${by_whom}`;
      if (by_whom) part.className = "doing";
      box.append(part);
    });
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", `${words.percent(done / map.length, 0)} of the tasks of the epoch are done`);
    parent.firstChild?.className === "map" ? parent.firstChild.replaceWith(box) : parent.replaceChildren(box);
    words.behind(parent, () => words.table(["part of the data", "done", "workers at it"],
      [...map].map((letter, at) => [at + 1, letter === "*" ? "all" : `${letter}0 %`, (holders.get(at) || []).join(", ")])));
  }

  function stages() {
    const found = Object.entries(store.stages).sort((a, b) => b[1] - a[1]);
    if (!found.length) {
      words.empty(by("stages"), "No step has been made yet.");
      return;
    }
    // As people say it; of a stage that is not known its own name.
    const said = {
      "feed": "reading records, and feed", "ids": "finding the ids to look up", "pull": "fetching parameters",
      "compute": "computing gradients", "compute wait": "waiting for a minibatch to compute",
      "push": "sending gradients", "reduce": "averaging gradients with other workers", "staleness wait": "waiting for others' updates", "lease": "asking for a task",
      "no task": "no task to do", "report": "telling what is done", "evaluate": "evaluating", "predict": "predicting",
      "write": "writing predictions", "metrics": "adding up metrics", "callbacks": "callbacks",
    };
    const most = found[0][1];
    by("stages").replaceChildren(words.table(["stage", "seconds", ""], found.map(([name, seconds]) => {
      const meter = words.element("div", undefined, "meter");
      meter.style.width = `${100 * seconds / most}%`;
      return [Object.hasOwn(said, name) ? said[name] : name, words.decimal(seconds, 4), meter];
    })));
  }

  function members() {
    const all = store.ordered();
    if (!all.length) {
      words.empty(by("members"), "No process has been heard of yet.");
      return;
    }
    // A long table takes a while to lay out. Nothing comes after the end, so that is shown at once.
    const isNews = store.ended !== null || all.length <= MANY || performance.now() - membersShown > 1000 * SECONDS_BETWEEN_MANY;
    if (!isNews) return;
    membersShown = performance.now();
    // Those that run first; of the dead the last ones.
    const alive = all.filter((lane) => !["lost", "left"].includes(lane.state));
    const dead = all.filter((lane) => ["lost", "left"].includes(lane.state)).slice(-100);
    const state = (lane) => store.ended !== null && !dead.includes(lane) ? "ended" : lane.state;
    const rows = [...alive, ...dead].slice(0, 1200).map((lane) => [
      lane.name, words.element("span", state(lane), `state-${state(lane)}`), lane.label || "–", lane.cores.toFixed(2),
      words.bytes(lane.memory), words.rate(lane.sent), words.rate(lane.received),
      lane.processes > 1 ? `${lane.processes - 1}` : "–", lane.pid || "–"]);
    by("members").replaceChildren(words.table(
      ["process", "state", "at", "cores", "memory", "sent", "received", "replaced", "pid"], rows, [0, 1, 2]));
  }

  function tables() {
    const t = store.tables;
    if (!t.names || !t.names.length) {
      words.empty(by("tables"), "No ps replica has said yet what it holds.");
      return;
    }
    // An event log of an earlier version does not have them.
    const pulled = t.pulled || [], hot = t.hot_keys || [], asked = t.replica_pulled || [];
    const hits = (at) => pulled[at] ? words.percent(t.found[at] / pulled[at]) : "–";
    const hottest = (at) => (hot[at] || []).map(([key, share]) => `${key} (${words.percent(share)})`).join(", ") || "–";
    const onDisk = (at) => (t.rows_on_disk || [])[at] ? ` (${words.count(t.rows_on_disk[at])} on disk)` : "";
    const rows = t.names.map((name, at) => [name, words.count(t.rows[at]) + onDisk(at), words.bytes(t.num_bytes[at]), hits(at), hottest(at)]);
    const replicas = t.replica_rows.map((rows, at) => [`ps-${at}`, words.count(rows), words.bytes(t.replica_bytes[at]), asked.length ? words.count(asked[at]) : "–"]);
    by("tables").replaceChildren(
      words.table(["table", "rows", "memory", "hit rate", "hottest keys"], rows, [0, 4]),
      words.element("p", "Hit rate: of the keys that training asked for, those that had a row already. Hottest keys: their share of the ids; a key that was made of a string is shown as its number.", "hint"),
      words.table(["replica", "rows", "memory", "keys asked for"], replicas));
  }

  function staleness() {
    const counts = store.picture.staleness || [];
    const sum = counts.reduce((a, b) => a + b, 0);
    if (!sum) {
      words.empty(by("staleness"), "No update has been applied yet.");
      return;
    }
    let last = counts.length - 1;
    while (!counts[last]) last -= 1;
    const name = (at) => at < 2 ? String(at) : `${2 ** (at - 1)} to ${2 ** at - 1}`;
    by("staleness").replaceChildren(words.table(["versions late", "updates", "share", ""], counts.slice(0, last + 1).map((count, at) => {
      const meter = words.element("div", undefined, "meter");
      meter.style.width = `${100 * count / sum}%`;
      return [name(at), words.count(count), words.percent(count / sum), meter];
    })));
  }

  function checkpoints() {
    const found = store.points.checkpoint || [];
    if (!found.length) {
      words.empty(by("checkpoints"), "No checkpoint has been written yet.");
      return;
    }
    by("checkpoints").replaceChildren(words.table(["version", "at", "clock"],
      [...found].reverse().slice(0, 50).map((one) => [words.count(one.version), words.duration(store.since(one.time)), words.clock(one.time)])));
  }

  // What a look at a sample of the data found.
  function data() {
    const lines = store.data;
    if (!lines.length) {
      words.empty(by("data"), "Nobody has looked at the data yet.");
      return;
    }
    by("data").replaceChildren(...lines.map((line) => words.element("p", line, line.startsWith("warning: ") ? "note" : "fact")));
  }

  function config() {
    const sections = Object.entries(store.config);
    if (!sections.length) {
      words.empty(by("config"), "The settings of the job are not known here.");
      return;
    }
    const rows = [];
    for (const [section, settings] of sections) {
      if (settings === null || typeof settings !== "object") rows.push([section, JSON.stringify(settings)]);
      else for (const [name, value] of Object.entries(settings)) if (value !== null && value !== "") rows.push([`--${name}`, typeof value === "string" ? value : JSON.stringify(value)]);
    }
    const details = words.element("details");
    const box = words.element("div", undefined, "table");
    box.tabIndex = 0;
    box.append(words.table(["flag", "value"], rows, [0, 1]));
    details.append(words.element("summary", `${rows.length} settings`), box);
    by("config").replaceChildren(details);
  }

  function show(isWhole) {
    for (const part of [summary, goodput, dips, events, tasks, stages, members, tables, staleness, checkpoints, data]) part();
    if (isWhole) config();
  }

  return { show };
})();
