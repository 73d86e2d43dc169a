"use strict";
// A lane for each process, every cell of time coloured by what the process did in it. Few lanes are
// drawn with their shares within a cell; many as one pixel row each, of the label with most time.
const lanes = (() => {
  const FEW = 40, PARTS = 32;
  let canvas = null, drawn = null, at = { lane: 0, cell: 0 };

  function codes(lane, cell) {
    const text = lane.cells.substr(4 * cell, 4);
    if (text.length < 4 || text[0] === ".") return [];
    const one = [[text.charCodeAt(0) - 97, text.charCodeAt(1) - 48]];
    if (text[2] !== ".") one.push([text.charCodeAt(2) - 97, text.charCodeAt(3) - 48]);
    return one;
  }

  function colours() {
    return store.labels.map((_, number) => charts.colour(`--label-${number}`));
  }

  function height(count) {
    return count <= 12 ? 20 : count <= FEW ? 14 : count <= 300 ? 4 : 2;
  }

  // All that the picture depends on but for the cells: if it is the same, only new cells are drawn.
  function layout(all, width) {
    const names = all.map((lane) => lane.name).join();
    return `${names}|${width}|${store.span()}|${store.generation}|${store.ended}|${charts.colour("--card")}`;
  }

  function show() {
    const parent = document.getElementById("lanes");
    const all = store.ordered();
    if (!all.length || store.grid.began === null) {
      words.empty(parent, "No process has been heard of yet.");
      canvas = null;
      return;
    }
    if (!canvas) build(parent);
    const width = Math.max(120, canvas.parentElement.clientWidth);
    const key = layout(all, width);
    const isNew = !drawn || drawn.key !== key;
    if (isNew) prepare(all, width, key);
    for (const [row, lane] of all.entries()) {
      const seen = drawn.lanes.get(lane.name);
      if (isNew || seen !== lane) drawLane(lane, row, isNew ? 0 : lane.changedFrom);
      drawn.lanes.set(lane.name, lane);
    }
    if (drawn.pixels) blit();
    drawAll(all);
    legend();
    words.behind(parent, () => table(all));
  }

  function build(parent) {
    drawn = null;  // it was on a canvas that is gone
    parent.replaceChildren();
    const scroll = words.element("div", undefined, "lanes");
    const grid = words.element("div", undefined, "lane-grid");
    const names = words.element("div", undefined, "names");
    const holder = words.element("div");
    canvas = words.element("canvas");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", "What each process did over time. Arrow keys move through processes and time; the line below and the table say the same.");
    const sums = words.element("canvas");
    sums.setAttribute("aria-hidden", "true");
    holder.append(sums, canvas);
    grid.append(names, holder);
    scroll.append(grid);
    const tip = words.element("p", "Point at a lane, or move with the arrow keys.", "tip");
    tip.setAttribute("aria-live", "polite");
    parent.append(scroll, tip);
    canvas.addEventListener("pointermove", (event) => point(event));
    canvas.addEventListener("keydown", (event) => move(event));
  }

  function prepare(all, width, key) {
    const each = height(all.length);
    const ratio = window.devicePixelRatio || 1;
    const total = each * all.length;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${total + 18}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round((total + 18) * ratio);
    const ctx = canvas.getContext("2d");
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    const span = store.span();
    const pixels = all.length > FEW ? new ImageData(span, all.length) : null;
    const palette = colours();
    drawn = { key, each, width, total, span, pixels, ctx, palette, lanes: new Map(),
      packed: palette.map(packed), words: pixels && new Uint32Array(pixels.data.buffer) };
    drawAxis();
    labels(all, each);
  }

  function packed(colour) {
    const hex = parseInt(colour.slice(1), 16);
    return (255 << 24 | (hex & 255) << 16 | (hex >> 8 & 255) << 8 | hex >> 16) >>> 0;
  }

  function labels(all, each) {
    const names = canvas.closest(".lane-grid").firstChild;
    names.replaceChildren();
    const sums = words.element("div", "all workers");
    sums.style.height = "52px";
    names.append(sums);
    const every = each >= 14 ? 1 : Math.ceil(40 / each);
    for (let n = 0; n < all.length; n += every) {
      const name = words.element("div", all[n].name);
      name.style.height = `${each * Math.min(every, all.length - n)}px`;
      name.style.lineHeight = `${Math.min(each * every, 20)}px`;
      names.append(name);
    }
  }

  function drawLane(lane, row, from) {
    if (drawn.pixels) {
      for (let cell = from; cell < drawn.span; cell += 1) {
        const [top] = codes(lane, cell);
        drawn.words[row * drawn.span + cell] = top ? drawn.packed[top[0]] : 0;
      }
      return;
    }
    const { ctx, each, width, span } = drawn;
    const y = row * each, step = width / span;
    ctx.clearRect(from * step, y, width - from * step, each);
    for (let cell = from; cell < store.grid.count; cell += 1) {
      const parts = codes(lane, cell);
      const filled = parts.reduce((sum, part) => sum + part[1], 0);
      const room = (each - 3) * Math.min(1, filled / PARTS > 0.9 ? 1 : filled / PARTS);
      let top = y + 1 + (each - 3 - room);
      parts.sort((a, b) => a[0] - b[0]).forEach(([label, share]) => {
        const tall = room * (share / filled);
        ctx.fillStyle = drawn.palette[label];
        ctx.fillRect(cell * step, top, step + 0.4, tall);
        top += tall;
      });
    }
  }

  function blit() {
    const { ctx, pixels, width, total, span } = drawn;
    const small = new OffscreenCanvas(span, pixels.height);
    small.getContext("2d").putImageData(pixels, 0, 0);
    ctx.clearRect(0, 0, width, total);
    ctx.imageSmoothingEnabled = false;
    ctx.drawImage(small, 0, 0, width, total);
  }

  // The seconds of all workers, stacked by label.
  function drawAll(all) {
    const sums = canvas.previousSibling;
    const ratio = window.devicePixelRatio || 1, tall = 46;
    const { width, span, palette } = drawn;
    sums.style.width = `${width}px`;
    sums.style.height = "52px";
    sums.width = Math.round(width * ratio);
    sums.height = Math.round(52 * ratio);
    const ctx = sums.getContext("2d");
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    const shares = new Float64Array(span * palette.length);
    let most = 1;
    for (const lane of all) {
      if (lane.role !== "worker") continue;
      for (let cell = 0; cell < store.grid.count; cell += 1) {
        for (const [label, share] of codes(lane, cell)) shares[cell * palette.length + label] += share;
      }
    }
    for (let cell = 0; cell < span; cell += 1) {
      let sum = 0;
      for (let n = 0; n < palette.length; n += 1) sum += shares[cell * palette.length + n];
      most = Math.max(most, sum);
    }
    for (let cell = 0; cell < store.grid.count; cell += 1) {
      let bottom = 48;
      // Training lies at the bottom, so that its height can be followed.
      for (const n of [1, ...palette.keys()].filter((n, i) => i === 0 || n !== 1)) {
        const high = tall * shares[cell * palette.length + n] / most;
        if (!high) continue;
        ctx.fillStyle = palette[n];
        ctx.fillRect(cell * width / span, bottom - high, width / span + 0.4, high);
        bottom -= high;
      }
    }
  }

  function drawAxis() {
    const { ctx, width, total, span } = drawn;
    ctx.fillStyle = charts.colour("--dim");
    ctx.font = "11px system-ui, sans-serif";
    const seconds = span * store.grid.step;
    const least = 90 * seconds / width;
    const step = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200].find((s) => s >= least) || 14400 * Math.ceil(least / 14400);
    for (let time = 0; time < seconds; time += step) {
      const x = time * width / seconds;
      ctx.fillRect(x, total, 1, 4);
      ctx.fillText(words.duration(time), x + 3, total + 13);
    }
  }

  function legend() {
    const list = document.getElementById("legend");
    if (list.children.length === store.labels.length) return;
    list.replaceChildren();
    for (const [number, label] of store.labels.entries()) {
      const item = words.element("li");
      const swatch = words.element("span", "", "swatch");
      swatch.style.background = `var(--label-${number})`;
      item.append(swatch, label);
      list.append(item);
    }
  }

  function point(event) {
    const box = canvas.getBoundingClientRect();
    at = {
      lane: Math.floor((event.clientY - box.top) / drawn.each),
      cell: Math.floor((event.clientX - box.left) * drawn.span / drawn.width),
    };
    tell();
  }

  function move(event) {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    at = { lane: at.lane + step[0], cell: at.cell + step[1] };
    tell();
  }

  function tell() {
    const all = store.ordered();
    at.lane = Math.min(all.length - 1, Math.max(0, at.lane));
    at.cell = Math.min(store.grid.count - 1, Math.max(0, at.cell));
    const lane = all[at.lane];
    const parts = codes(lane, at.cell).map(([label, share]) => `${store.labels[label]} ${words.percent(share / PARTS, 0)}`);
    const when = words.duration(at.cell * store.grid.step);
    canvas.closest(".lanes").nextSibling.textContent = `${lane.name} at ${when}: ${parts.join(", ") || "no process"}`;
  }

  function table(all) {
    const used = store.labels.filter((label) => all.some((lane) => lane.seconds[label]));
    const rows = all.map((lane) => [lane.name, ...used.map((label) => words.decimal(lane.seconds[label] || 0, 4))]);
    return words.table(["seconds", ...used], rows);
  }

  function forget() {
    drawn = null;
  }

  return { show, forget };
})();
