"use strict";
// Lines over time, by uPlot, with a table behind each. Dips are shaded.
const charts = (() => {
  const made = new Map();

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function axis(values, size) {
    return {
      stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 },
      ticks: { stroke: colour("--line"), width: 1 }, values, size,
    };
  }

  function short(value) {
    if (value === null) return "";
    const large = Math.abs(value);
    if (large >= 1e6) return `${words.decimal(value / 1e6, 4)} M`;
    if (large >= 1e4) return `${words.decimal(value / 1e3, 4)} k`;
    return words.decimal(value, 4);
  }

  function shade(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.fillStyle = colour("--band");
    for (const dip of store.dips) {
      const left = plot.valToPos(store.since(dip.begin), "x", true);
      const right = plot.valToPos(store.since(dip.end), "x", true);
      ctx.fillRect(left, bbox.top, Math.max(2, right - left), bbox.height);
    }
    ctx.restore();
  }

  function options(parent, lines) {
    const points = { show: lines.some((line) => line.points) };
    return {
      width: Math.max(200, parent.clientWidth), height: 190,
      cursor: lines[0].byEventTime ? { y: false } : { sync: { key: "job" }, y: false },
      scales: {
        x: lines[0].byEventTime
          ? { time: true } : { time: false, range: () => [0, store.span() * store.grid.step] },
        y: { range: { min: { pad: 0.1, soft: lines[0].fromZero ? 0 : undefined, mode: lines[0].fromZero ? 1 : 3 }, max: { pad: 0.1, mode: 3 } } },
      },
      axes: [
        axis(lines[0].byEventTime ? undefined : (_, values) => values.map(words.duration), 32),
        axis((_, values) => values.map(short), 62),
      ],
      series: [
        { label: "time", value: (_, value) => at(lines, value) },
        ...lines.map((line) => ({
          label: line.label, stroke: colour(line.colour), width: 1.5, spanGaps: true,
          points: { ...points, size: line.size || 5 }, dash: line.dash, value: (_, value) => short(value),
        })),
      ],
      hooks: { drawClear: lines[0].byEventTime ? [] : [shade] },
    };
  }

  function at(lines, value) {
    if (value === null || value === undefined) return "";
    return lines[0].byEventTime ? new Date(value * 1000).toLocaleString() : words.duration(value);
  }

  // lines: [{label, colour, x: seconds, y: values, points, fromZero}]; their times may differ.
  // byEventTime: x are seconds since 1970, and not of the job.
  function draw(id, parent, lines, what) {
    const used = lines.filter((line) => line.y.some((value) => value !== null));
    if (!used.length) {
      drop(id);
      words.empty(parent, what);
      return;
    }
    const data = used.length === 1
      ? [used[0].x, used[0].y] : uPlot.join(used.map((line) => [line.x, line.y]));
    const key = used.map((line) => line.label).join("\n");
    const before = made.get(id);
    if (before && before.key === key) {
      const width = Math.max(200, parent.clientWidth);
      if (before.plot.width !== width) before.plot.setSize({ width, height: 190 });
      before.plot.setData(data);
    } else {
      drop(id);
      parent.replaceChildren();
      const holder = words.element("div");
      parent.append(holder);
      const plot = new uPlot(options(parent, used), data, holder);
      plot.root.setAttribute("role", "img");
      plot.root.setAttribute("aria-label", `${key.replaceAll("\n", ", ")} over time; the table below has the numbers`);
      made.set(id, { plot, key, parent });
    }
    words.behind(parent, () => tableOf(used, data));
  }

  function tableOf(lines, data) {
    const every = Math.max(1, Math.ceil(data[0].length / 200));
    const rows = [];
    for (let n = 0; n < data[0].length; n += every) {
      rows.push([at(lines, data[0][n]), ...lines.map((_, line) => words.decimal(data[line + 1][n] ?? null))]);
    }
    return words.table(["time", ...lines.map((line) => line.label)], rows);
  }

  function drop(id) {
    const before = made.get(id);
    if (before) before.plot.destroy();
    made.delete(id);
  }

  function resize() {
    for (const { plot, parent } of made.values()) {
      plot.setSize({ width: Math.max(200, parent.clientWidth), height: 190 });
    }
  }

  // Colours are read when a chart is made: all are made again.
  function forget() {
    for (const id of [...made.keys()]) drop(id);
  }

  // The axis of cells: the middle of each, in seconds.
  function times() {
    const { step } = store.grid;
    return store.throughput.map((_, at) => (at + 0.5) * step);
  }

  function showThroughput() {
    // The last cell of a running job is filled in part only.
    const last = store.throughput.length - (store.ended === null ? 1 : 0);
    const y = store.throughput.map((value, at) => (at < last ? value : null));
    const any = store.throughput.some((value) => value > 0);
    draw("throughput", document.getElementById("throughput"),
      any ? [{ label: "records/s", colour: "--accent", x: times(), y, fromZero: true }] : [],
      "No record has been trained yet.");
  }

  function showLoss() {
    const lines = [{ label: "loss of the records then", colour: "--accent", x: times(), y: store.loss }];
    const epochs = (store.points.training || []).filter((point) => point.loss !== null);
    if (epochs.length) {
      lines.push({
        label: "mean of the epoch so far", colour: "--second", dash: [6, 4],
        x: epochs.map((point) => store.since(point.time)), y: epochs.map((point) => point.loss),
      });
    }
    draw("loss", document.getElementById("loss"), lines, "No loss has been reported yet.");
  }

  // All boxes are there before any chart is drawn: they share the width.
  function boxes(parent, count) {
    while (parent.children.length > count) parent.lastChild.remove();
    while (parent.children.length < count) {
      const box = words.element("div");
      box.append(words.element("h3"), words.element("div"));
      parent.append(box);
    }
  }

  function showMetrics() {
    const parent = document.getElementById("metrics");
    const names = new Map();
    const note = (name, kind, time, value) => {
      if (!names.has(name)) names.set(name, { training: [[], []], evaluation: [[], []] });
      names.get(name)[kind][0].push(store.since(time));
      names.get(name)[kind][1].push(value);
    };
    for (const point of store.points.training || []) {
      const metrics = Object.keys(point.recent_metrics).length ? point.recent_metrics : point.metrics;
      for (const [name, value] of Object.entries(metrics)) note(name, "training", point.time, value);
    }
    for (const point of store.points.evaluation || []) {
      for (const [name, value] of Object.entries(point.metrics)) note(name, "evaluation", point.time, value);
    }
    const rates = store.points.learning_rate || [];
    if (!names.size && !rates.length) {
      words.empty(parent, "No metric has been measured yet.");
      return;
    }
    if (rates.length) {
      names.set("learning rate", { training: [rates.map((p) => store.since(p.time)), rates.map((p) => p.value)], evaluation: [[], []] });
    }
    parent.querySelector(":scope > .empty")?.remove();
    const shown = [...names].slice(0, 12);
    boxes(parent, shown.length);
    shown.forEach(([name, { training, evaluation }], at) => {
      const box = parent.children[at];
      box.firstChild.textContent = name;
      const best = store.bests.filter((one) => one.metric === name);
      draw(`metric ${at} ${name}`, box.lastChild, [
        { label: "training", colour: "--accent", x: training[0], y: training[1], points: true },
        { label: "evaluation", colour: "--second", x: evaluation[0], y: evaluation[1], points: true },
        { label: "best evaluation", colour: "--good", x: best.map((one) => store.since(one.time)), y: best.map((one) => one.value), points: true, size: 11 },
      ], "not measured yet");
    });
  }

  function showWindows() {
    const windows = [...(store.points.window || [])].sort((one, other) => one.start - other.start);
    document.getElementById("of-windows").hidden = !windows.length;
    if (!windows.length) return;
    const names = [...new Set(windows.flatMap((one) => Object.keys(one.metrics)))].slice(0, 10);
    const values = new Map(names.map((name) => [name, (one) => one.metrics[name] ?? null]));
    values.set("loss", (one) => one.loss);
    values.set("messages", (one) => one.num_messages);
    const parent = document.getElementById("windows");
    boxes(parent, values.size);
    [...values].forEach(([name, of], at) => {
      const box = parent.children[at];
      box.firstChild.textContent = name;
      draw(`window ${at} ${name}`, box.lastChild, [{
        label: name, colour: "--accent", x: windows.map((one) => one.start), y: windows.map(of),
        points: true, fromZero: name === "messages", byEventTime: true,
      }], "not measured");
    });
  }

  function show() {
    showThroughput();
    showLoss();
    showMetrics();
    showWindows();
  }

  return { show, resize, forget, colour };
})();
