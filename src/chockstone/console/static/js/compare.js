// The Compare page: one series of several runs in one chart, aligned by step, time since the start, or tokens.
(function () {
  "use strict";
  const { Chart, table, places, number, remember, recall, bindControls, load, element } = window.consoleCharts;
  const root = document.querySelector("[data-compare]");
  if (!root) return;
  const select = root.querySelector("[data-compare-series]");
  const runs = Array.from(document.querySelectorAll("[data-compare-run]")).map((row, index) => ({
    row: row, id: row.dataset.compareRun, label: row.dataset.label, colour: index, points: [], isHidden: false,
  }));
  let name = recall("compare-series", "loss"), chart = null;

  const lines = () => runs.filter((run) => !run.isHidden).map((run) => {
    const where = places(run.points, true);
    const [xs, ys] = table(run.points.map((point, index) => [where[index], point.values[name]]), (pair) => pair[0], (pair) => pair[1]);
    return { label: run.label, colour: run.colour, xs: xs, ys: ys };
  });
  function showValues() {
    for (const run of runs) {
      const values = run.points.map((point) => point.values[name]).filter((value) => value !== undefined);
      run.row.querySelector("[data-last]").textContent = values.length ? number(values[values.length - 1]) : "–";
      run.row.querySelector("[data-least]").textContent = values.length ? number(values.reduce((a, b) => Math.min(a, b))) : "–";
    }
  }
  function names() {
    const found = new Set();
    for (const run of runs) for (const point of run.points) for (const each of Object.keys(point.values)) if (each !== "loss:min" && each !== "loss:max") found.add(each);
    return [...found].sort((a, b) => (a === "loss" ? -1 : b === "loss" ? 1 : a.localeCompare(b)));
  }

  async function begin() {
    await Promise.all(runs.map(async (run) => {
      try { run.points = (await load(run.row.dataset.source)).points; } catch (error) { run.points = []; }
    }));
    const all = names();
    if (!all.includes(name)) name = all[0] || "loss";
    select.replaceChildren(...all.map((each) => { const option = element("option", "", each); option.value = each; option.selected = each === name; return option; }));
    const holder = root.querySelector("[data-compare-chart]");
    holder.replaceChildren();
    holder.setAttribute("role", "img");
    holder.setAttribute("aria-label", `${name} of ${runs.length} runs`);
    chart = new Chart(holder, { height: 380, lines: lines, isElapsed: true });
    root.dataset.points = String(runs.reduce((sum, run) => sum + run.points.length, 0));
    root.removeAttribute("aria-busy");
    showValues();
  }
  select.addEventListener("change", () => { name = select.value; remember("compare-series", name); chart.build(); showValues(); });
  document.addEventListener("change", (event) => {
    const box = event.target.closest("[data-compare-show]");
    if (!box) return;
    runs.find((run) => run.id === box.value).isHidden = !box.checked;
    chart.build();
  });
  bindControls(() => {});
  begin();
})();
