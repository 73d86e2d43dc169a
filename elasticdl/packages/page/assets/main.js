"use strict";
// Shows a report, whose data is in the page, or a job that runs, of which the master tells.
(() => {
  const connection = document.getElementById("connection");
  const POLL = 750, POLL_HIDDEN = 5000, SLOWEST = 5000;
  let heard = null, failures = 0;

  function say(text, isGone = false) {
    if (connection.textContent !== text) connection.textContent = text;
    connection.className = isGone ? "gone" : "";
  }

  function show(said) {
    const isNew = said.whole || said.version !== store.version;
    store.take(said);
    if (!isNew) return;
    panels.show(said.whole);
    charts.show();
    lanes.show();
  }

  function redraw() {
    charts.forget();
    lanes.forget();
    charts.show();
    lanes.show();
  }

  async function poll() {
    let wait = document.hidden ? POLL_HIDDEN : POLL;
    try {
      const answer = await fetch(`board?log=${store.log}&since=${store.version}&generation=${store.generation}`, { cache: "no-store", signal: AbortSignal.timeout(10000) });
      if (answer.status === 401) {
        say("The master does not know this page's token. Open the address that the job has printed.", true);
        return;
      }
      if (!answer.ok) throw new Error(`the master answered ${answer.status}`);
      show(await answer.json());
      heard = Date.now();
      failures = 0;
      if (store.ended !== null) {
        say(`The job is over (${store.phase}); this is its last picture.`);
      } else {
        say(store.grid.count ? "live" : "The job is starting; there is no data yet.");
      }
    } catch (error) {
      failures += 1;
      if (store.ended !== null) {
        say(`The job is over (${store.phase}); this is its last picture.`);
        return;
      }
      const since = heard === null ? "" : ` since ${words.clock(heard / 1000)}`;
      say(`The master has not answered${since}. What it said last stays here; trying again.`, true);
      wait = Math.min(SLOWEST, POLL * 2 ** Math.min(failures - 1, 3));
    }
    setTimeout(poll, wait);
  }

  let resizing = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(resizing);
    resizing = requestAnimationFrame(() => { charts.resize(); lanes.show(); });
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  const report = document.getElementById("job-data");
  if (report) {
    show(JSON.parse(report.textContent));
    say(store.ended !== null ? "report" : "report of a job that has not ended");
  } else {
    say("asking the master ...");
    poll();
  }
})();
