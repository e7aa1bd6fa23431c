// Charts of series over steps, time or tokens, drawn by uPlot in the colours of the theme.
//
// consoleCharts.Chart(container, options): one chart. options.lines() returns [{label, colour, xs, ys}] and is asked
// again by update(). options.marks() returns [{x, kind, label}]. All charts of a page share cursor, zoom and settings.
(function () {
  "use strict";
  const style = () => getComputedStyle(document.documentElement);
  const colour = (name) => style().getPropertyValue(name).trim();
  const series = (index) => colour(`--series-${(index % 8) + 1}`);

  // Settings that a person chose, kept in this browser
  function remember(name, value) { try { localStorage.setItem(`chockstone-${name}`, JSON.stringify(value)); } catch (error) { /* for this page */ } }
  function recall(name, fallback) {
    try { const kept = localStorage.getItem(`chockstone-${name}`); return kept === null ? fallback : JSON.parse(kept); } catch (error) { return fallback; }
  }
  const settings = { smooth: Number(recall("smooth", 0.4)) || 0, axis: "step", scale: "linear", zoom: null };
  const charts = new Set();

  // Numbers
  function number(value) {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(4)));
  }
  function short(value) {
    const size = Math.abs(value);
    if (size >= 1e9) return `${+(value / 1e9).toPrecision(3)}G`;
    if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
    if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
    if (size !== 0 && size < 1e-3) return value.toExponential(0);
    return String(+value.toPrecision(4));
  }
  function span(seconds) {
    if (seconds < 120) return `${+seconds.toPrecision(3)} s`;
    if (seconds < 7200) return `${+(seconds / 60).toPrecision(3)} min`;
    return `${+(seconds / 3600).toPrecision(3)} h`;
  }
  function axisValue(value, isElapsed) {
    if (settings.axis === "tokens") return `${short(value)} tokens`;
    if (settings.axis === "step") return `Step ${number(value)}`;
    return isElapsed ? span(value) : new Date(value * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "medium" });
  }

  // Exponential moving average that does not start at zero
  function smooth(ys, weight) {
    if (!weight) return ys;
    let last = 0, total = 0;
    return ys.map((y) => {
      if (y === null) return null;
      last = last * weight + y * (1 - weight);
      total = total * weight + (1 - weight);
      return last / total;
    });
  }

  // Points of one series: one value for each x. Equal x (several passes of one step) become their mean.
  function table(points, x, y) {
    const xs = [], ys = [];
    let count = 0;
    for (const point of points) {
      const value = y(point), place = x(point);
      if (value === undefined || value === null || place === undefined || place === null) continue;
      if (xs.length && xs[xs.length - 1] === place) {
        count += 1;
        ys[ys.length - 1] += (value - ys[ys.length - 1]) / count;
      } else { xs.push(place); ys.push(value); count = 1; }
    }
    return [xs, ys];
  }
  // The places of points on the chosen axis. Tokens add up; merged points stand for several.
  function places(points, isElapsed) {
    if (settings.axis === "step") return points.map((point) => point.step);
    if (settings.axis === "time") { const first = points.length ? points[0].at : 0; return points.map((point) => (isElapsed ? point.at - first : point.at)); }
    let sum = 0;
    return points.map((point) => {
      const isMixed = "tokens" in point.values && "learning_rate" in point.values;
      if ("tokens" in point.values) sum += point.values.tokens * (point.count || 1) / (isMixed ? 2 : 1);
      return sum;
    });
  }

  function marksPlugin(marks) {
    return {
      hooks: {
        draw: [(u) => {
          const { ctx, bbox } = u, ratio = devicePixelRatio;
          ctx.save();
          for (const mark of marks()) {
            if (mark.x === null || mark.x < u.scales.x.min || mark.x > u.scales.x.max) continue;
            const x = Math.round(u.valToPos(mark.x, "x", true));
            const isCrash = mark.kind === "recovery";
            ctx.strokeStyle = ctx.fillStyle = colour(isCrash ? "--series-2" : "--series-3");
            ctx.lineWidth = ratio * (isCrash ? 1.5 : 1);
            ctx.globalAlpha = isCrash ? 0.9 : 0.45;
            ctx.setLineDash(isCrash ? [4 * ratio, 3 * ratio] : []);
            ctx.beginPath();
            ctx.moveTo(x, bbox.top);
            ctx.lineTo(x, bbox.top + bbox.height);
            ctx.stroke();
            ctx.globalAlpha = 1;
            ctx.setLineDash([]);
            ctx.beginPath();
            if (isCrash) ctx.arc(x, bbox.top, 3.5 * ratio, 0, 2 * Math.PI);
            else { ctx.moveTo(x - 3.5 * ratio, bbox.top - 4 * ratio); ctx.lineTo(x + 3.5 * ratio, bbox.top - 4 * ratio); ctx.lineTo(x, bbox.top + 3 * ratio); }
            ctx.fill();
          }
          ctx.restore();
        }],
      },
    };
  }

  function element(name, className, text) {
    const made = document.createElement(name);
    made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function tipPlugin(chart) {
    const tip = element("div", "chart-tip");
    tip.hidden = true;
    return {
      hooks: {
        init: [(u) => { u.over.append(tip); u.over.addEventListener("mouseleave", () => { tip.hidden = true; }); }],
        setCursor: [(u) => {
          const { left, top, idx } = u.cursor;
          if (idx === null || idx === undefined || left < 0 || !u.over.matches(":hover")) { tip.hidden = true; return; }
          tip.replaceChildren(element("div", "chart-tip-head", axisValue(u.data[0][idx], chart.isElapsed)));
          for (const line of chart.shown) {
            const value = nearest(u.data[line.smoothed], idx);
            if (value === null) continue;
            const row = element("div", "chart-tip-row");
            row.append(element("span", `swatch swatch-${line.colourIndex + 1}`), element("span", "clip", line.label));
            const raw = nearest(u.data[line.raw], idx);
            row.append(element("span", "", settings.smooth && line.raw !== line.smoothed ? `${number(value)} (${number(raw)})` : number(value)));
            tip.append(row);
          }
          for (const mark of chart.marks()) {
            if (mark.x !== null && Math.abs(u.valToPos(mark.x, "x") - left) < 6) tip.append(element("div", "chart-tip-mark", `${mark.kind}: ${mark.label}`));
          }
          tip.hidden = false;
          const beyond = left + tip.offsetWidth + 24 > u.over.clientWidth;
          tip.style.transform = `translate(${Math.max(0, beyond ? left - tip.offsetWidth - 14 : left + 14)}px, ${Math.min(top + 8, Math.max(0, u.over.clientHeight - tip.offsetHeight))}px)`;
        }],
      },
    };
  }
  const STEPS = [1, 2, 5].flatMap((digit) => Array.from({ length: 13 }, (_, zeros) => digit * 10 ** zeros)).sort((a, b) => a - b);
  // A flat line gets room around it: ticks closer together than numbers can be would never end.
  function yRange(min, max) {
    if (min === null || max === null) return settings.scale === "log" ? [0.1, 1] : [0, 1];
    const isFlat = max - min <= 1e-6 * Math.max(Math.abs(min), Math.abs(max));
    if (settings.scale === "log") return isFlat ? [min / 2, max * 2] : window.uPlot.rangeLog(min, max, 10, false);
    if (isFlat) { const room = Math.abs(max) * 0.1 || 1; return [min - room, max + room]; }
    const room = (max - min) * 0.06;
    return [min >= 0 && min - room < 0 ? 0 : min - room, max + room];
  }
  function nearest(values, index) {
    for (let by = 0; by < 40; by += 1) {
      if (values[index - by] !== null && values[index - by] !== undefined) return values[index - by];
      if (values[index + by] !== null && values[index + by] !== undefined) return values[index + by];
    }
    return null;
  }

  class Chart {
    constructor(container, options) {
      this.container = container;
      this.lines = options.lines;
      this.marks = options.marks || (() => []);
      this.height = options.height || 200;
      this.isElapsed = options.isElapsed || false;
      this.domain = options.domain || (() => null); // [first, last] that all charts of the page share
      this.shown = [];
      this.plot = null;
      charts.add(this);
      this.watcher = new ResizeObserver(() => { if (this.plot && container.clientWidth) this.plot.setSize({ width: container.clientWidth, height: this.height }); });
      this.watcher.observe(container);
      this.build();
    }

    data() {
      const isLog = settings.scale === "log";
      const positive = (y) => (isLog && !(y > 0) ? null : y);
      const tables = [];
      this.shown = [];
      this.drawn = [];
      for (const line of this.lines()) {
        if (!line.xs.length) continue;
        const raw = line.ys.map(positive), soft = smooth(raw, settings.smooth);
        const isSoft = settings.smooth > 0 && raw.length > 2;
        tables.push(isSoft ? [line.xs, raw, soft] : [line.xs, raw]);
        const first = this.drawn.length + 1;
        this.shown.push({ label: line.label, colourIndex: line.colour % 8, raw: first, smoothed: isSoft ? first + 1 : first });
        if (isSoft) this.drawn.push({ colour: line.colour, isFaint: true });
        this.drawn.push({ colour: line.colour, isFaint: false });
      }
      if (!tables.length) return [[0], [null]];
      return tables.length === 1 ? tables[0] : window.uPlot.join(tables);
    }

    build() {
      if (this.plot) { this.plot.destroy(); this.plot = null; }
      const data = this.data();
      const faint = colour("--text-faint"), line = colour("--line");
      const font = `11px ${colour("--font-sans")}`;
      const axis = { stroke: faint, font: font, grid: { stroke: line, width: 1 }, ticks: { show: false } };
      const isTime = settings.axis === "time" && !this.isElapsed;
      const xAxis = Object.assign({}, axis, { grid: { show: false }, space: 70, size: 28 });
      if (settings.axis === "step") xAxis.incrs = STEPS;
      if (!isTime) xAxis.values = (u, found) => found.map((value) => (settings.axis === "time" ? span(value) : short(value)));
      const options = {
        width: Math.max(120, this.container.clientWidth), height: this.height, legend: { show: false }, padding: [10, 14, 0, 0],
        cursor: { sync: { key: "console" }, drag: { x: true, y: false, setScale: false }, y: false, points: { size: 7 } },
        scales: { x: { time: isTime, range: (u, min, max) => this.xRange(min, max) }, y: { distr: settings.scale === "log" ? 3 : 1, range: (u, min, max) => yRange(min, max) } },
        axes: [xAxis, Object.assign({}, axis, { size: 52, values: (u, found) => found.map((value) => (value === null ? "" : short(value))) })],
        series: [{}].concat(this.drawn.length ? this.drawn.map((each) => ({
          stroke: series(each.colour) + (each.isFaint ? "55" : ""), width: each.isFaint ? 1 : 1.75, spanGaps: true,
          points: { show: (u, index) => u.data[index].length < 40 && !each.isFaint, size: 5, fill: series(each.colour), stroke: series(each.colour) },
        })) : [{}]),
        plugins: [marksPlugin(this.marks), tipPlugin(this)],
        hooks: {
          setSelect: [(u) => {
            if (u.select.width < 5) return;
            zoomTo({ min: u.posToVal(u.select.left, "x"), max: u.posToVal(u.select.left + u.select.width, "x") });
          }],
          ready: [(u) => { u.over.addEventListener("dblclick", () => zoomTo(null)); }],
        },
      };
      this.plot = new window.uPlot(options, data, this.container);
    }

    xRange(min, max) {
      if (settings.zoom) return [settings.zoom.min, settings.zoom.max];
      const [first, last] = this.domain() || [min, max];
      if (first === null || first === undefined) return [0, 1];
      return first === last ? [first - 0.5, last + 0.5] : [first, last];
    }

    update() {
      const before = this.drawn.length, data = this.data();
      if (!this.plot || before !== this.drawn.length) this.build(); else this.plot.setData(data);
    }

    remove() {
      charts.delete(this);
      this.watcher.disconnect();
      if (this.plot) this.plot.destroy();
    }
  }

  function zoomTo(zoom) {
    settings.zoom = zoom;
    for (const chart of charts) {
      if (!chart.plot) continue;
      chart.plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      chart.plot.setData(chart.plot.data);
    }
    for (const button of document.querySelectorAll("[data-zoom-reset]")) button.hidden = zoom === null;
  }
  function rebuild() { for (const chart of charts) chart.build(); }

  // Controls: smoothing, axes, zoom
  function press(selector, isChosen) { for (const button of document.querySelectorAll(selector)) button.setAttribute("aria-pressed", String(isChosen(button))); }
  function bindControls(onChange) {
    const slider = document.querySelector("[data-smooth]"), shown = document.querySelector("[data-smooth-value]");
    slider.value = settings.smooth;
    shown.textContent = Number(slider.value).toFixed(2);
    slider.addEventListener("input", () => {
      settings.smooth = Number(slider.value);
      shown.textContent = settings.smooth.toFixed(2);
      remember("smooth", settings.smooth);
      rebuild();
    });
    document.addEventListener("click", (event) => {
      const button = event.target.closest("[data-axis], [data-scale], [data-zoom-reset]");
      if (!button) return;
      if (button.dataset.axis) { settings.axis = button.dataset.axis; zoomTo(null); press("[data-axis]", (each) => each === button); onChange(); rebuild(); }
      else if (button.dataset.scale) { settings.scale = button.dataset.scale; press("[data-scale]", (each) => each === button); rebuild(); }
      else zoomTo(null);
    });
    document.addEventListener("console:theme", () => requestAnimationFrame(rebuild));
  }

  async function load(url) {
    const answer = await fetch(url, { headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(String(answer.status));
    return answer.json();
  }

  window.consoleCharts = { Chart, settings, table, places, number, remember, recall, bindControls, load, element };
})();
