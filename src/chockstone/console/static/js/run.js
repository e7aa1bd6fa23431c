// The Run page: a chart for each series of the run, with its recoveries and checkpoints, extended as points come.
(function () {
  "use strict";
  const { Chart, settings, table, places, number, remember, recall, bindControls, load, element } = window.consoleCharts;
  const root = document.querySelector("[data-run-charts]");
  const grid = root.querySelector("[data-chart-grid]"), chips = root.querySelector("[data-series-chips]");
  const SHOWN = new Set(["loss", "grad_norm", "learning_rate", "forward_backward seconds"]); // others when a person asks for them
  const ORDER = ["loss", "grad_norm", "learning_rate", "forward_backward seconds", "optim_step seconds", "tokens", "loss:sum"];
  const points = []; // by position, oldest first
  let last = 0, choice = recall("series", {}), shown = new Map(), marks = [], timer = 0;

  // Seconds of both operations have one name: what else a point has says which operation it was.
  function seriesOf(point) {
    const found = {};
    for (const [name, value] of Object.entries(point.values)) {
      if (name === "loss:min" || name === "loss:max") continue;
      if (name !== "seconds" || point.source === "client") { found[name] = value; continue; }
      const isPass = "tokens" in point.values, isStep = "learning_rate" in point.values;
      if (isPass !== isStep) found[isPass ? "forward_backward seconds" : "optim_step seconds"] = value;
    }
    return found;
  }
  function names() {
    const own = new Set(), others = new Set();
    for (const point of points) for (const name of Object.keys(point.series)) (point.source === "client" ? own : others).add(name);
    const known = ORDER.filter((name) => others.has(name));
    const rest = [...others].filter((name) => !ORDER.includes(name)).sort();
    return [...known.slice(0, 1), ...[...own].sort(), ...known.slice(1), ...rest].filter((name, index, all) => all.indexOf(name) === index);
  }
  const isOwn = (name) => points.some((point) => point.source === "client" && name in point.series);
  const isShown = (name) => choice[name] ?? (SHOWN.has(name) || isOwn(name));

  function add(news) {
    for (const point of news) {
      if (point.position <= last) continue;
      point.series = seriesOf(point);
      points.push(point);
      last = point.position;
    }
  }
  function lines(name) {
    const where = places(points, false);
    const [xs, ys] = table(points.map((point, index) => [where[index], point.series[name]]), (pair) => pair[0], (pair) => pair[1]);
    return [{ label: name, colour: 0, xs: xs, ys: ys }];
  }
  function domain() {
    const where = places(points, false);
    if (!where.length) return null;
    return where.reduce(([low, high], x) => [Math.min(low, x), Math.max(high, x)], [where[0], where[0]]);
  }
  // A recovery has a time; on the other axes it stands at the last point before it.
  function placed() {
    const where = places(points, false);
    return marks.map((mark) => {
      if (settings.axis === "time") return { x: mark.at, kind: mark.kind, label: mark.label };
      if (settings.axis === "step" && mark.step !== undefined && mark.step !== null) return { x: mark.step, kind: mark.kind, label: mark.label };
      let index = points.length - 1;
      while (index > 0 && points[index].at > mark.at) index -= 1;
      return { x: points.length ? where[index] : null, kind: mark.kind, label: mark.label };
    });
  }
  function readMarks() {
    const holder = root.querySelector("[data-marks]");
    try { marks = JSON.parse(holder.textContent || "[]"); } catch (error) { marks = []; }
  }

  function layOut() {
    const all = names();
    chips.replaceChildren(...all.map((name) => {
      const chip = element("button", "chip", name);
      chip.type = "button";
      chip.dataset.series = name;
      chip.dataset.test = "series";
      chip.setAttribute("aria-pressed", String(isShown(name)));
      return chip;
    }));
    const wanted = all.filter(isShown);
    for (const [name, made] of shown) if (!wanted.includes(name)) { made.chart.remove(); made.box.remove(); shown.delete(name); }
    grid.querySelectorAll("[data-chart-wait], .chart-empty").forEach((each) => each.remove());
    if (!all.length) grid.append(element("p", "chart-empty faint small", "No point yet. The first forward_backward of the run appears here."));
    wanted.forEach((name, index) => {
      let made = shown.get(name);
      if (!made) {
        const box = element("div", "chart"), head = element("div", "chart-head"), value = element("span", "chart-value");
        box.dataset.test = "chart";
        box.dataset.chart = name;
        head.append(element("span", "chart-title", name), value);
        const canvas = element("div", "chart-canvas");
        canvas.setAttribute("role", "img");
        box.append(head, canvas);
        grid.append(box);
        box.classList.toggle("chart-main", index === 0);
        made = { box: box, value: value, canvas: canvas, chart: new Chart(canvas, { height: index === 0 ? 300 : 180, lines: () => lines(name), marks: placed, domain: domain }) };
        shown.set(name, made);
      } else grid.append(made.box);
      made.box.classList.toggle("chart-main", index === 0);
    });
    showValues();
  }
  function showValues() {
    for (const [name, made] of shown) {
      for (let index = points.length - 1; index >= 0; index -= 1) if (name in points[index].series) {
        made.value.textContent = number(points[index].series[name]);
        made.canvas.setAttribute("aria-label", `${name}, ${points.length} points, last ${made.value.textContent}`);
        break;
      }
    }
    root.dataset.points = String(points.length);
    root.dataset.last = String(last);
  }
  function refresh() {
    if (timer) return;
    timer = setTimeout(() => {
      timer = 0;
      const all = names();
      if (all.length !== chips.children.length) { layOut(); return; }
      for (const made of shown.values()) made.chart.update();
      showValues();
    }, 250);
  }

  async function fetchPoints() {
    try {
      const page = await load(`${root.dataset.source}?after=${last}`);
      const isFirst = !points.length;
      add(page.points);
      if (isFirst) layOut(); else refresh();
    } catch (error) { // the server is away: the next connection fetches them
      if (!points.length) root.dataset.failed = "true";
    }
  }

  chips.addEventListener("click", (event) => {
    const chip = event.target.closest("[data-series]");
    if (!chip) return;
    choice = Object.assign({}, choice, { [chip.dataset.series]: !isShown(chip.dataset.series) });
    remember("series", choice);
    layOut();
  });
  document.addEventListener("live:points", (event) => { add(event.detail); refresh(); });
  document.addEventListener("console:connected", fetchPoints);
  document.addEventListener("console:part", (event) => { if (event.detail.name === "run_marks") { readMarks(); refresh(); } });
  readMarks();
  bindControls(() => {});
  fetchPoints();
})();
