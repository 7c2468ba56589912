// Draws charts with Plotly, in the colours of their legends: a run's timeline from the JSON that the page names,
// the bars of a figure from the numbers of its table.
(() => {
  const source = document.currentScript.dataset.plotly;
  const SHORTEST = 3; // pixels: a bar that is shorter would be lost
  const STEPS = [.01, .05, .1, .5, 1, 2, 5, 15, 30, 60, 300, 900, 1800, 3600, 10800, 21600, 43200,
    86400, 172800, 604800, 2419200].map((seconds) => seconds * 1000);
  const DAY = 86400000;
  const frame = () => document.getElementById("timeline");
  const canvas = () => document.getElementById("timeline-chart");
  const styles = (selector) => getComputedStyle(document.querySelector(selector));
  let plotly, data, version, zoom = "all", dragged;

  // Plotly brings the style of its maps along, which the page's policy would refuse: it gets an
  // element that styles nothing instead.
  const library = () => plotly ??= new Promise((done, refused) => {
    const failed = (error) => { plotly = undefined; refused(error); };
    const make = document.createElement.bind(document), script = make("script");
    document.createElement = (name, options) => make(name === "style" ? "template" : name, options);
    Object.assign(script, { src: source, onload: done, onerror: failed });
    document.head.append(script);
  }).finally(() => delete document.createElement);

  const swatch = (kind) => {
    const found = document.querySelector(`[data-swatch="${kind}"]`);
    if (!found) return { fill: styles("body").color, width: 0 };
    const { fill, stroke } = getComputedStyle(found);
    return { fill, stroke, width: stroke === "none" ? 0 : 1, hatched: Boolean(found.nextElementSibling) };
  };

  // Moments of the wall clock of the page's zone, also where the clocks change in between.
  const shiftOf = (zone) => {
    const format = new Intl.DateTimeFormat("en-US", { timeZone: zone, hourCycle: "h23", year: "numeric",
      month: "numeric", day: "numeric", hour: "numeric", minute: "numeric", second: "numeric" });
    return (moment) => {
      const part = Object.fromEntries(format.formatToParts(moment).map(({ type, value }) => [type, +value]));
      return Date.UTC(part.year, part.month - 1, part.day, part.hour, part.minute, part.second)
        - Math.floor(moment / 1000) * 1000;
    };
  };
  const ticks = ([from, to]) => {
    const step = STEPS.find((one) => one >= (to - from) / 8) || Math.ceil((to - from) / 8 / DAY) * DAY;
    const shift = shiftOf(data.zone), vals = [];
    for (let wall = Math.ceil((from + shift(from)) / step) * step; ; wall += step) {
      const moment = wall - shift(wall - shift(wall));
      if (moment > to || vals.length > 40) break;
      if (moment >= from) vals.push(moment);
    }
    const day = { weekday: "short", day: "numeric" }, time = { hour: "2-digit", minute: "2-digit" };
    const told = step >= DAY ? { day: "numeric", month: "short" }
      : { ...(to - from > DAY ? day : {}), ...time, ...(step < 60000 ? { second: "2-digit" } : {}),
        ...(step < 1000 ? { fractionalSecondDigits: 2 } : {}) };
    const format = new Intl.DateTimeFormat(data.language, { timeZone: data.zone, hourCycle: "h23", ...told });
    return { tickvals: vals, ticktext: vals.map((moment) => format.format(moment)) };
  };

  const traces = (perPixel) => [
    ...Object.entries(data.bars).map(([kind, bars]) => {
      const { fill, stroke, width, hatched } = swatch(kind);
      return {
        type: "bar", orientation: "h", width: .62, y: bars.y, base: bars.x,
        x: bars.length.map((length) => Math.max(length, SHORTEST * perPixel)),
        hovertext: bars.text, hovertemplate: "%{hovertext}<extra></extra>", textposition: "none",
        marker: { color: fill, line: { color: stroke, width },
          pattern: { shape: hatched ? "/" : "", fillmode: "overlay", fgcolor: styles(".panel").backgroundColor, size: 6, solidity: .25 } },
      };
    }),
    { type: "scatter", mode: "text", ...data.ends, x: data.ends.x.map((at) => at + SHORTEST * perPixel),
      text: data.ends.text.map((glyph) => `  ${glyph}`), textposition: "middle right", hoverinfo: "skip",
      textfont: { color: styles("body").color, size: 14 } },
    ...Object.entries(data.marks).map(([kind, marks]) => ({
      type: "scatter", mode: "markers", x: marks.x, y: marks.y, hovertext: marks.text,
      hovertemplate: "%{hovertext}<extra></extra>",
      marker: { symbol: kind === "deadline" ? "diamond" : "diamond-open", size: 11, color: styles("body").color },
    })),
  ];

  const looks = () => {
    const body = styles("body"), line = styles(".panel").borderTopColor, surface = styles(".panel").backgroundColor;
    return { body, axis: { gridcolor: line, zeroline: false, fixedrange: true }, layout: {
      showlegend: false, paper_bgcolor: "transparent", plot_bgcolor: "transparent", hovermode: "closest",
      font: { family: body.fontFamily, size: 12, color: styles(".mute").color },
      hoverlabel: { align: "left", bgcolor: surface, bordercolor: styles("button").borderTopColor,
        font: { family: body.fontFamily, color: body.color } },
    } };
  };
  const dotted = (x) => ({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1,
    line: { color: styles("body").color, width: 1, dash: "dot" } });
  const OPTIONS = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false };

  const draw = () => {
    if (!data) return;
    const { body, axis, layout } = looks();
    const longest = Math.max(...data.rows.map((row) => row.length));
    const margin = { l: Math.min(16 + 7 * longest, 230), r: 12, t: 30, b: data.now ? 18 : 4 };
    const range = dragged || data.ranges[zoom] || data.ranges.all;
    const perPixel = (range[1] - range[0]) / Math.max(canvas().clientWidth - margin.l - margin.r, 100);
    const now = data.now && {
      shapes: [dotted(data.now)],
      annotations: data.now > range[1] ? [] : [{ text: data.now_word, x: data.now, yref: "paper", y: 0,
        yanchor: "top", showarrow: false, font: { color: body.color } }],
    };
    const rows = data.rows.map((_row, place) => place);
    window.Plotly.react(canvas(), traces(perPixel), {
      ...layout, ...now, margin, height: frame().querySelector("svg").height.baseVal.value, barmode: "overlay",
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      xaxis: { ...axis, fixedrange: false, type: "linear", range, side: "top", ...ticks(range) },
      yaxis: { ...axis, range: [rows.length - .5, -.5], tickvals: rows, ticktext: data.rows,
        tickfont: { color: body.color } },
    }, OPTIONS);
    document.querySelectorAll("[data-zoom]").forEach((button) =>
      button.setAttribute("aria-pressed", String(!dragged && button.dataset.zoom === zoom)));
  };

  const drawBars = (figure, box) => {
    const { body, axis, layout } = looks(), all = (selector) => [...figure.querySelectorAll(selector)];
    const table = figure.querySelector("tbody"), rows = [...table.rows];
    const begins = [...rows.map((row) => row.cells[0].dataset.tick), table.dataset.end];
    const named = [...begins.keys()].filter((place) => begins[place]);
    const each = Math.ceil(named.length * (20 + 7 * begins[named[0]].length) / box.clientWidth);
    const shown = named.filter((_place, number) => (named.length - 1 - number) % each === 0);
    const most = Math.max(...all("[data-n]").map((cell) => cell.dataset.n));
    const lines = all("[data-line]").map((one) => ({ x: +one.dataset.line, text: one.textContent.slice(0, 3) }));
    window.Plotly.react(box, all("[data-swatch]").map((one, column) => {
      const cells = rows.map((row) => row.cells[column + 1]), { fill, stroke, width } = swatch(one.dataset.swatch);
      return {
        type: "bar", y: cells.map((cell) => +cell.dataset.n), marker: { color: fill, line: { color: stroke, width } },
        hovertext: cells.map((cell, place) =>
          `${rows[place].cells[0].textContent}<br>${cell.textContent} ${one.closest("li").textContent}`),
        hovertemplate: "%{hovertext}<extra></extra>",
      };
    }), {
      ...layout, margin: { l: 44, r: 24, t: 20, b: 28 }, height: box.parentElement.offsetHeight, bargap: lines[0] ? 0 : .2,
      dragmode: false,
      xaxis: { ...axis, showgrid: false, range: [-.5, rows.length - .5], ticks: "outside",
        tickvals: shown.map((place) => place - .5), ticktext: shown.map((place) => begins[place]) },
      yaxis: { ...axis, rangemode: "tozero", ...(most < 5 ? { dtick: 1 } : { nticks: 5 }) },
      shapes: lines.map(({ x }) => dotted(x)),
      annotations: lines.map((one, place) => ({ ...one, yref: "paper", y: 1, yanchor: "bottom", showarrow: false,
        xanchor: place ? "left" : "right", font: { color: body.color } })),
    }, OPTIONS);
  };

  const bars = async () => {
    const figures = document.querySelectorAll("[data-bars]");
    if (!figures.length) return;
    const loaded = await library().then(() => true, () => false);
    for (const figure of figures) {
      const box = figure.querySelector("[data-failed]");
      if (!box.firstElementChild) box.textContent = loaded ? "" : box.dataset.failed;
      if (loaded) drawBars(figure, box);
    }
  };

  const show = (name) => { zoom = name; dragged = undefined; draw(); };

  const read = async () => {
    const wanted = frame()?.dataset.version;
    if (!wanted || wanted === version) { draw(); return; }
    const before = version;
    version = wanted;
    try {
      const [answer] = await Promise.all([fetch(frame().dataset.source), library()]);
      if (!answer.ok) throw new Error(answer.status);
      const first = !data;
      data = await answer.json();
      if (first) canvas().textContent = "";
      draw();
      if (!first) return;
      canvas().on("plotly_relayout", (change) => {
        if (!("xaxis.range[0]" in change)) return;
        dragged = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
        draw();
      });
      canvas().on("plotly_doubleclick", () => show("all"));
    } catch {
      version = before;
      if (!data) canvas().textContent = frame().dataset.failed;
    }
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-zoom]");
    if (button) show(button.dataset.zoom);
  });
  const again = () => { draw(); bars(); };
  document.addEventListener("pgbus:theme", again);
  document.addEventListener("pgbus:live", () => { read(); bars(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  read();
  bars();
})();
