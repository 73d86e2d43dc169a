"use strict";
// What the page knows of the job. `take` adds what the master, or the report, has said.
const store = {
  log: "", version: -1, generation: -1, labels: [], config: {}, lanes: new Map(), facts: [], points: {},
  throughput: [], loss: [], grid: { began: null, step: 1, count: 0 }, dips: [], goodput: null,
  picture: {}, tables: {}, data: [], stages: {}, lost: {}, bound: null, phase: "pending", ended: null, latest: 0, message: "",
  bests: [], overfitting: "",

  take(said) {
    const grown = said.grid.count;
    if (said.whole) {
      this.lanes.clear();
      this.facts = [];
      this.points = {};
      this.throughput = [];
      this.loss = [];
      this.labels = said.labels;
      this.config = said.config;
    }
    const { from } = said.series;
    for (const name of ["throughput", "loss"]) {
      const values = this[name];
      values.length = Math.min(values.length, from);
      while (values.length < from) values.push(name === "loss" ? null : 0);
      values.push(...said.series[name]);
      while (values.length < grown) values.push(name === "loss" ? null : 0);
    }
    for (const lane of said.lanes) {
      const before = this.lanes.get(lane.name);
      const kept = (before ? before.cells : "").slice(0, 4 * lane.from).padEnd(4 * lane.from, ".");
      const changedFrom = lane.cells ? lane.from : (before ? before.changedFrom : 0);
      this.lanes.set(lane.name, { ...lane, cells: kept + lane.cells, changedFrom });
    }
    this.facts.push(...said.facts);
    this.facts.splice(0, Math.max(0, this.facts.length - 1000));
    Object.assign(this.points, said.points);
    for (const name of ["log", "version", "generation", "grid", "dips", "goodput", "picture", "tables",
      "data", "stages", "lost", "bound", "phase", "ended", "latest", "message", "bests", "overfitting"]) this[name] = said[name];
  },

  // Lanes in the order of roles and numbers.
  ordered() {
    const order = { master: 0, ps: 1, modelserver: 2, worker: 3 };
    return [...this.lanes.values()].sort((a, b) => order[a.role] - order[b.role] || a.index - b.index);
  },

  // How many cells the time axis has: some room to grow, so that not all moves with each second.
  span() {
    const { count } = this.grid;
    return this.ended !== null ? Math.max(1, count) : Math.max(60, Math.ceil((count + 1) / 30) * 30);
  },

  // Seconds since the job began, of a time.
  since(time) {
    return time - this.grid.began;
  },
};
