"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  const LINES = [["synth", "--synth", "synth"], ["ring", "--ring", "ring"], ["tree", "--tree", "tree"], ["bound", "--bound", "bound"], ["measured", "--measured", "measured"]];
  const KINDS = { send: "--synth", receive: "--tree", local: "--ring" };
  const FILTERS = ["collective", "machine", "state", "name"];
  let chosen = null;

  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "onclick") made.addEventListener("click", value);
      else made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null));
    return made;
  };
  const shape = (tag, attributes, title) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (title) {
      const told = document.createElementNS(SVG, "title");
      told.textContent = title;
      made.append(told);
    }
    return made;
  };
  const text = (x, y, words, anchor = "start") => {
    const made = shape("text", { x, y, "text-anchor": anchor });
    made.textContent = words;
    return made;
  };
  const digits = (value, count = 3) => value === null || value === undefined ? "–" : Number(value.toPrecision(count)).toLocaleString("en", { maximumSignificantDigits: count });
  const percent = (value) => value === null ? "–" : `${(100 * value).toFixed(value < 0.1 ? 1 : 0)}%`;
  const sizeName = (bytes) => {
    for (const [unit, name] of [[2 ** 30, "GB"], [2 ** 20, "MB"], [2 ** 10, "KB"]]) if (bytes % unit === 0) return `${bytes / unit}${name}`;
    return `${bytes}`;
  };
  const unique = (items) => [...new Set(items)];
  const groups = (items, key) => {
    const found = new Map();
    for (const item of items) found.set(key(item), [...(found.get(key(item)) || []), item]);
    return found;
  };
  const slower = (item) => Object.values(item.baselines_us).some((other) => item.time_us !== null && other < 0.995 * item.time_us);

  // Filters
  const fill = (id, names, all) => {
    const select = byId(id);
    if (all) select.append(element("option", { value: "" }, "all"));
    for (const name of names) select.append(element("option", { value: name }, name));
  };
  const shown = () => {
    const collective = byId("by-collective").value, machine = byId("by-machine").value, state = byId("by-state").value;
    const words = byId("by-name").value.toLowerCase().split(/\s+/).filter(Boolean);
    return data.cases.filter((item) =>
      (!collective || item.collective === collective) && (!machine || item.machine === machine) &&
      (state !== "changed" || item.change) && (state !== "unanswered" || item.time_us === null) &&
      (state !== "slower" || slower(item)) && words.every((word) => item.case.toLowerCase().includes(word)));
  };

  // Curves: one card for each machine and collective (and strategy and seed, where there are several)
  const ticks = (low, high) => {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) if (10 ** power >= low && 10 ** power <= high) found.push(10 ** power);
    return found;
  };
  const values = (item) => ({ synth: item.busbw, bound: item.bound_busbw, ...item.baselines, measured: measured(item) });
  const measured = (item) => {
    const found = data.measurements.find((one) => one.machine === item.machine && one.xml_hash === item.xml_hash && one.bytes === item.bytes && one.with_busbw && one.simulated_us);
    return found ? found.with_busbw : null;
  };
  const curve = (items) => {
    const width = 360, height = 230, left = 40, right = 10, top = 8, bottom = 26;
    const all = items.flatMap((item) => Object.values(values(item))).filter((value) => value > 0);
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "curve" }, `bus bandwidth against size, ${items[0].machine} ${items[0].collective}`);
    if (!all.length) { svg.append(text(width / 2, height / 2, "no answers", "middle")); return svg; }
    const low = Math.min(...all) / 1.3, high = Math.max(...all) * 1.3;
    const first = Math.log2(items[0].bytes), last = Math.log2(items[items.length - 1].bytes);
    const x = (bytes) => left + (width - left - right) * (last > first ? (Math.log2(bytes) - first) / (last - first) : 0.5);
    const y = (value) => top + (height - top - bottom) * (Math.log(high) - Math.log(value)) / (Math.log(high) - Math.log(low));
    for (const tick of ticks(low, high)) {
      svg.append(shape("line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick), class: "grid" }), text(left - 5, y(tick) + 4, `${tick}`, "end"));
    }
    svg.append(text(2, top + 6, "GB/s"));
    items.forEach((item, at) => {
      const anchor = at === 0 ? "start" : at === items.length - 1 ? "end" : "middle";
      if (items.length < 8 || at % 3 === 0) svg.append(text(x(item.bytes), height - 8, item.size, items.length > 1 ? anchor : "middle"));
    });
    for (const [name, colour] of [...LINES].reverse()) {
      const points = items.map((item) => [item, values(item)[name]]).filter(([, value]) => value > 0);
      if (!points.length) continue;
      const style = `stroke: var(${colour}); fill: none; stroke-width: ${name === "synth" ? 2.5 : 1.5}` + (name === "bound" ? "; stroke-dasharray: 5 4" : "");
      svg.append(shape("polyline", { points: points.map(([item, value]) => `${x(item.bytes).toFixed(1)},${y(value).toFixed(1)}`).join(" "), style, "data-line": name }));
      if (name === "bound") continue;
      for (const [item, value] of points) {
        const point = shape("circle", { cx: x(item.bytes), cy: y(value), r: name === "synth" ? 3.5 : 2.2, style: `fill: var(${colour}); cursor: pointer` }, `${item.case}\n${name} ${digits(value)} GB/s`);
        point.addEventListener("click", () => choose(item));
        svg.append(point);
      }
    }
    return svg;
  };
  const several = unique(data.cases.map((item) => `${item.strategy} ${item.seed}`)).length > 1;
  const drawCurves = (items) => {
    const cards = [];
    for (const [, group] of groups(items, (item) => [item.machine, item.collective, item.strategy, item.seed].join(" "))) {
      const one = group[0], sorted = [...group].sort((a, b) => a.bytes - b.bytes);
      const title = `${one.machine} · ${one.collective}` + (several ? ` · ${one.strategy} ${one.seed}` : "");
      cards.push(element("div", { class: "card" }, element("h3", {}, title), curve(sorted)));
    }
    byId("curves").replaceChildren(...cards);
    const used = new Set(items.flatMap((item) => Object.entries(values(item)).filter(([, value]) => value).map(([name]) => name)));
    byId("legend").replaceChildren(...LINES.filter(([name]) => used.has(name)).map(([, colour, words]) => key(colour, words)));
  };
  const key = (colour, words) => element("span", {}, element("i", { style: `background: var(${colour})` }), words);

  // Heat map
  const cell = (item) => {
    if (item.efficiency === null) return element("td", { class: `none ${item.change}`, title: `${item.case}: ${item.status} ${item.problem}`, onclick: () => choose(item) }, item.status === "left out" ? "…" : "✗");
    const share = Math.round(12 + 88 * Math.max(0, Math.min(1, item.efficiency)));
    const style = `background: color-mix(in srgb, var(--synth) ${share}%, var(--surface)); color: var(${share > 65 ? "--on-strong" : "--ink"})`;
    return element("td", { style, class: item.change, title: `${item.case}: ${digits(item.time_us)} us, bound ${digits(item.bound_us)} us`, onclick: () => choose(item) }, percent(item.efficiency));
  };
  const drawHeat = (items) => {
    const sizes = unique(items.map((item) => item.bytes)).sort((a, b) => a - b);
    const head = element("tr", {}, element("th", {}, ""), ...sizes.map((bytes) => element("th", {}, sizeName(bytes))));
    const rows = [];
    for (const [name, group] of groups(items, (item) => [item.machine, item.collective, item.strategy, item.seed].join(" "))) {
      const at = new Map(group.map((item) => [item.bytes, item]));
      const one = group[0], title = [one.machine, byId("by-collective").value ? "" : one.collective, several ? `${one.strategy} ${one.seed}` : ""].filter(Boolean).join(" ");
      rows.push(element("tr", { "data-row": name }, element("th", {}, title), ...sizes.map((bytes) => at.has(bytes) ? cell(at.get(bytes)) : element("td", { class: "none" }, ""))));
    }
    byId("heat").replaceChildren(element("table", { class: "heat" }, element("thead", {}, head), element("tbody", {}, ...rows)));
  };

  // History
  const spark = (history, at, width = 120, height = 26) => {
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "spark", style: "width: auto" }, history.map((past) => `run ${past[0]}: ${digits(past[at])}`).join("\n"));
    const points = history.map((past, place) => [place, past[at]]).filter(([, value]) => value !== null);
    if (!points.length) return svg;
    const all = points.map(([, value]) => value), low = Math.min(...all), high = Math.max(...all);
    const x = (place) => 4 + (width - 8) * (history.length > 1 ? place / (history.length - 1) : 1);
    const y = (value) => height / 2 + (high > low ? (height - 8) * (0.5 - (value - low) / (high - low)) : 0);
    svg.append(shape("polyline", { points: points.map(([place, value]) => `${x(place)},${y(value)}`).join(" "), style: "fill: none; stroke: var(--synth); stroke-width: 1.5" }));
    const [place, value] = points[points.length - 1];
    svg.append(shape("circle", { cx: x(place), cy: y(value), r: 2.5, style: "fill: var(--synth)" }));
    return svg;
  };

  // A case
  const unpack = async (packed) => {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  };
  const openFile = async (item) => {
    const address = URL.createObjectURL(new Blob([await unpack(data.files[item.xml_hash])], { type: "text/xml" }));
    const name = `${item.collective}-${item.machine}-${item.xml_hash}.xml`;
    const link = element("a", { href: address, download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  };
  const timeline = (drawing) => {
    const width = 760, left = 56, row = 9, top = 22, rows = drawing.rows.length, height = top + rows * row + 22;
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "timeline" }, `who is busy when at ${sizeName(drawing.bytes)}`);
    const span = drawing.span_us || 1, x = (at) => left + (width - left - 8) * at / span;
    for (let share = 0; share <= 4; share += 1) {
      const at = span * share / 4;
      svg.append(shape("line", { x1: x(at), x2: x(at), y1: top - 4, y2: height - 18, class: "grid" }), text(x(at), height - 5, `${digits(at)} us`, share === 0 ? "start" : share === 4 ? "end" : "middle"));
    }
    let before = null;
    drawing.rows.forEach(([rank, block], place) => {
      if (rank !== before) svg.append(text(left - 6, top + place * row + 8, `gpu ${rank}`, "end"));
      before = rank;
      svg.append(shape("line", { x1: left, x2: width - 8, y1: top + place * row + row, y2: top + place * row + row, class: "grid" }));
      void block;
    });
    for (const [place, start, end, kind] of drawing.bars) {
      const [rank, block] = drawing.rows[place];
      svg.append(shape("rect", { x: x(start), y: top + place * row + 1, width: Math.max(0.6, x(end) - x(start)), height: row - 2, style: `fill: var(${KINDS[kind]})` }, `gpu ${rank}, threadblock ${block}: ${kind}, ${digits(start)} to ${digits(end)} us`));
    }
    return svg;
  };
  const counted = (count, name) => `${count} ${name}${count === 1 ? "" : "s"}`;
  const facts = (item, job) => {
    const rows = [
      ["status", item.problem ? `${item.status}: ${item.problem}` : item.status],
      ["simulated", `${digits(item.time_us, 4)} us, ${digits(item.busbw)} GB/s`], ["schedule", `${digits(item.schedule_us, 4)} us`],
      ["bound", `${digits(item.bound_us, 4)} us, reached to ${percent(item.efficiency)}`],
      ...Object.entries(item.baselines_us).map(([name, taken]) => [name, `${digits(taken, 4)} us (${digits(taken / item.time_us)} times ours)`]),
      ["proof", item.proof ? `${item.proof}${item.gap === null ? "" : `, gap ${percent(item.gap)}`}` : "none"],
      ["program", [item.protocol, counted(item.chunks, "chunk"), counted(item.instances, "instance"), counted(item.channels, "channel"), counted(item.threadblocks, "threadblock"), counted(item.steps, "step")].join(", ")],
      ["synthesis", `${digits(job.cpu_s)} s of CPU time, ${job.peak_bytes ? `${Math.round(job.peak_bytes / 2 ** 20)} MB` : "memory unknown"}`],
      ["instance", item.instance_hash], ["file", item.xml_hash || "none"],
    ];
    return element("dl", {}, ...(item.time_us === null ? [rows[0], rows[rows.length - 2]] : rows).flatMap(([name, words]) => [element("dt", {}, name), element("dd", {}, words)]));
  };
  const past = (history) => {
    if (history.length < 2) return null;
    const first = history[0], last = history[history.length - 1];
    return element("p", { class: "note" }, `Efficiency over ${history.length} runs: ${percent(first[2])} in run ${first[0]}, ${percent(last[2])} in run ${last[0]}`, element("br"), spark(history, 2, 220, 40));
  };
  const choose = async (item, scroll = true) => {
    chosen = item.case;
    if (scroll) tellAddress();
    const job = data.jobs[item.job], drawing = element("div", {});
    const stages = element("table", {}, element("tr", {}, ...["stage", "s", "CPU s", "peak MB", "status"].map((name) => element("th", {}, name))),
      ...job.stages.map((stage) => element("tr", {}, element("td", {}, stage.name), element("td", { class: "number" }, stage.seconds.toFixed(2)), element("td", { class: "number" }, stage.cpu_s === null ? "–" : stage.cpu_s.toFixed(2)), element("td", { class: "number" }, stage.peak_bytes ? `${Math.round(stage.peak_bytes / 2 ** 20)}` : "–"), element("td", {}, stage.status))));
    byId("chosen").replaceChildren(
      element("h3", {}, item.case),
      element("div", { class: "pair" },
        element("div", {}, facts(item, job), past(item.history),
          item.xml_hash && data.files[item.xml_hash] ? element("p", {}, element("button", { type: "button", onclick: () => openFile(item) }, "Download the XML")) : null),
        drawing),
      element("code", { class: "command" }, job.command),
      element("details", {}, element("summary", {}, "stages of the synthesis"), element("div", { class: "scroll" }, stages), ...job.notes.map((note) => element("p", { class: "note" }, note))));
    if (scroll) byId("case").scrollIntoView({ block: "start" });
    const packed = item.xml_hash && data.timelines[item.xml_hash];
    if (!packed) return;
    const told = JSON.parse(await unpack(packed)), rows = told.rows.length;
    if (chosen !== item.case) return;
    drawing.append(element("p", { class: "note" }, `Who is busy when, simulated at ${sizeName(told.bytes)}, from the first byte on${told.cut ? " (the beginning)" : ""}${rows < 64 ? "" : ", the first 64 threadblocks"}`),
      element("div", { class: "legend" }, key("--synth", "sends"), key("--tree", "receives"), key("--ring", "local")), element("div", { class: "scroll" }, timeline(told)));
  };

  // Time to synthesize
  const drawSynthesis = (items) => {
    const jobs = unique(items.map((item) => item.job)), names = unique(jobs.flatMap((job) => Object.keys(data.jobs[job].stage_cpu_s)));
    const machineOf = new Map(items.map((item) => [item.job, item.machine]));
    const bars = [...groups(jobs, (job) => machineOf.get(job))].map(([machine, own]) => [machine, names.map((name) => own.reduce((sum, job) => sum + (data.jobs[job].stage_cpu_s[name] || 0), 0))]);
    const most = Math.max(...bars.map(([, parts]) => parts.reduce((a, b) => a + b, 0)), 1e-9);
    byId("stages").replaceChildren(...names.map((name, at) => key(`--stage-${at % 11}`, name)));
    byId("synthesis").replaceChildren(...bars.map(([machine, parts]) => {
      const whole = parts.reduce((a, b) => a + b, 0);
      const track = parts.map((part, at) => element("i", { style: `width: ${100 * part / most}%; background: var(--stage-${at % 11})`, title: `${names[at]}: ${digits(part)} s` }));
      return element("div", { class: "bar" }, element("span", {}, machine), element("div", { class: "track" }, ...track), element("b", {}, `${whole.toFixed(1)} s`));
    }));
  };

  // Tables
  const drawAll = (items) => {
    const head = ["case", "time us", "schedule us", "bound us", "efficiency", "busbw GB/s", "ring", "tree", "history"];
    const rows = items.map((item) => element("tr", { class: item.change },
      element("td", { "data-case": item.case }, item.case),
      ...[digits(item.time_us, 4), digits(item.schedule_us, 4), digits(item.bound_us, 4), percent(item.efficiency), digits(item.busbw), ...["ring", "tree"].map((name) => item.baselines_us[name] && item.time_us ? `${(item.baselines_us[name] / item.time_us).toFixed(2)}×` : "–")].map((words) => element("td", { class: "number" }, words)),
      element("td", {}, item.history.length > 1 ? spark(item.history, 1) : "")));
    byId("all").replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...head.map((name, at) => element("th", { class: at ? "number" : "" }, name)))), element("tbody", {}, ...rows)));
  };
  const drawMeasured = () => {
    byId("gpu").hidden = !data.measurements.length;
    const head = ["machine", "collective", "size", "way", "status", "measured us", "simulated us", "measured / simulated", "without the file us", "why"];
    byId("measured").replaceChildren(element("table", {}, element("tr", {}, ...head.map((name) => element("th", {}, name))),
      ...data.measurements.map((item) => element("tr", { class: item.status === "wrong" || item.status === "failed" ? "wrong" : "", title: item.command },
        ...[item.machine, item.collective, item.size, item.way, item.status, digits(item.with_us, 4), digits(item.simulated_us, 4), item.with_us && item.simulated_us ? (item.with_us / item.simulated_us).toFixed(2) : "–", digits(item.without_us, 4), item.problem].map((words) => element("td", {}, words))))));
  };

  const draw = () => {
    const items = shown();
    byId("count").textContent = `${items.length} of ${data.cases.length} cases`;
    drawCurves(items); drawHeat(items); drawSynthesis(items); drawAll(items);
    if (items.length && !items.some((item) => item.case === chosen)) choose(items[Math.floor(items.length / 2)], false);
    if (!items.length) { chosen = null; byId("chosen").replaceChildren("No case is shown."); }
  };
  fill("by-collective", unique(data.cases.map((item) => item.collective)), true);
  fill("by-machine", unique(data.cases.map((item) => item.machine)), true);
  if (data.cases.length) byId("by-collective").value = data.cases[0].collective;
  // What the address asks for: #collective=allgather&machine=dgx1&state=changed&name=1MB&case=dgx1/allgather/1MB/auto/0
  const asked = new URLSearchParams(location.hash.slice(1));
  for (const name of FILTERS) if (asked.has(name)) byId(`by-${name}`).value = asked.get(name);
  const tellAddress = () => {
    const words = FILTERS.map((name) => [name, byId(`by-${name}`).value]);
    location.replace(`#${new URLSearchParams([...words, ["case", chosen || ""]])}`);
  };
  byId("filters").addEventListener("input", () => { draw(); tellAddress(); });
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("click", (event) => {
    const name = event.target.dataset ? event.target.dataset.case : null, found = name && data.cases.find((item) => item.case === name || item.job === name);
    if (found) choose(found);
  });
  drawMeasured();
  draw();
  const wanted = data.cases.find((item) => item.case === asked.get("case"));
  if (wanted) choose(wanted);
})();
