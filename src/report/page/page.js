// Builds the page: head, comparison, time lines, shares, memory, words.

const $ = (id) => document.getElementById(id);

// An element with attributes and children; text is text.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") element.style.cssText = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function showTip(event, tip) {
  const box = $("tip");
  box.hidden = !tip;
  if (!tip) return;
  box.replaceChildren(make("b", {}, tip.title), make("table", {}, ...tip.facts.map(([name, value]) =>
    make("tr", {}, make("td", {}, name), make("td", {}, value)))));
  const x = event.clientX + 16, y = event.clientY + 18;
  box.style.left = `${Math.max(4, Math.min(x, innerWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${y + box.offsetHeight > innerHeight ? Math.max(4, event.clientY - box.offsetHeight - 12) : y}px`;
}

const page = readPage();
page.shareNames = [];
for (const run of page.runs)
  for (const rank of run.ranks)
    for (const share of rank.shares) if (!page.shareNames.includes(share.name)) page.shareNames.push(share.name);
page.shareNames.sort((a, b) => (a === "idle at the end") - (b === "idle at the end"));
const view = new View(Math.max(1, ...page.runs.map((run) => run.length)));
const state = {run: 0, rank: new Map(), timelines: [], redraw: []};  // rank: of a run, chosen

const swatch = (c, line) => make("span", {class: line ? "swatch line" : "swatch", style: `background:${css(c)}`});
const legend = (entries) => make("ul", {class: "legend"}, ...entries.map(([name, c, line]) =>
  make("li", {}, swatch(c, line), name)));
const letter = (i) => (i < 26 ? "" : letter(Math.floor(i / 26) - 1)) + String.fromCharCode(65 + i % 26);
const many = page.runs.length > 1;
// Lines may end behind a comma.
const planCode = (plan, kind = "") => make("code", {class: kind}, ...plan.split(/(?<=,)/).flatMap((part) => [part, make("wbr")]));
// Whether a bar of any run is so: f(run, lane, index of the bar).
const anyBar = (f) => page.runs.some((run) => run.ranks.some((rank) => rank.lanes.some((lane) =>
  [...Array(lane.n).keys()].some((i) => f(run, lane, i)))));
const isCall = (run, lane, i) => CALL.test(run.kinds[lane.name[i]]);
const isOp = (run, lane, i) => lane.category[i] === COMPUTE && !isCall(run, lane, i);
const isCollective = (run, lane, i) => lane.category[i] === COMM && !lane.messages;

// Mean over ranks: [name, ns].
function meanShares(run) {
  return page.shareNames.map((name) => [name, run.ranks.reduce((sum, rank) =>
    sum + (rank.shares.find((share) => share.name === name)?.time || 0), 0) / run.ranks.length]);
}

function head() {
  const theme = make("button", {id: "theme", "aria-label": "light or dark", onclick: () =>
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark")}, "Light / dark");
  const run = page.runs[0];
  $("head").replaceChildren(
    make("div", {class: "top"}, make("div", {}, make("h1", {}, page.title),
      make("p", {class: "soft"}, page.subtitle)), theme),
    ...(many ? [] : [make("p", {}, "Plan ", planCode(run.plan)), make("dl", {class: "stats"},
      ...run.figures.map((figure) => make("div", {}, make("dt", {}, figure.name),
        make("dd", {}, micro(figure.value), figure.note ? make("span", {class: "note"}, figure.note) : null)))),
      ...(run.note ? [make("p", {class: "soft", id: "note"}, run.note)] : [])]));
}

function comparison() {
  if (!many) return;
  const longest = Math.max(...page.runs.map((run) => run.step)), first = page.runs[0];
  const names = first.figures.map((figure) => figure.name);
  const against = (run) => {
    const change = (100 * (run.step / first.step - 1)).toFixed(1), sign = change > 0 ? "+" : change < 0 ? "−" : "";
    return run === first ? "" : `${sign}${change.replace("-", "").replace(/^0\.0$/, "0.0")} %`;
  };
  const rows = page.runs.map((run, i) => make("tr", {}, make("td", {class: "wrap"}, make("b", {}, letter(i)), " ",
    planCode(run.plan), run.note ? make("div", {class: "soft small"}, run.note) : null), make("td", {}, against(run)), ...run.figures.map((figure) => make("td", {}, micro(figure.value)))));
  const stacks = page.runs.map((run, i) => make("div", {class: "row"}, make("b", {}, letter(i)),
    make("div", {class: "rail"}, make("div", {class: "stack", style: `width:${(100 * run.step / longest).toFixed(2)}%`},
      ...meanShares(run).filter(([, time]) => time > 0).map(([name, time]) => make("i", {
        style: `width:${(100 * time / run.step).toFixed(3)}%;background:${css(shareColour(page, name))}`,
        onpointermove: (event) => showTip(event, {title: name, facts: [["mean over ranks", timeText(time)],
          ["of the step", percentText(time, run.step)]]}), onpointerleave: () => showTip(null)})))),
    make("span", {class: "time"}, timeText(run.step))));
  $("comparison").replaceChildren(make("h2", {}, "Plans compared"),
    make("div", {class: "scroll"}, make("table", {class: "data wide"}, make("thead", {}, make("tr", {},
      make("th", {}, "plan"), make("th", {}, "against A"), ...names.map((name) => make("th", {}, name)))),
    make("tbody", {}, ...rows))), make("div", {class: "stacks"}, ...stacks),
    make("p", {class: "soft small"}, "One step of each, mean over its ranks, at one scale."),
    legend(page.shareNames.map((name) => [name, shareColour(page, name)])));
}

function timelineLegend() {
  const kinds = new Set(page.runs.flatMap((run) => run.kinds)), entries = [], ops = anyBar(isOp);
  const words = {F: "F forward", B: "B backward", I: "I input gradient", W: "W weight gradient", UPDATE: "UPDATE"};
  for (const [kind, text] of Object.entries(words)) if (kinds.has(kind)) entries.push([text, colour(kind)]);
  if (ops) entries.push(["op", colour("other")]);
  else if (kinds.has("VALIDATE")) entries.push(["SHARE, VALIDATE: norm and loss of all stages", colour("other")]);
  if (page.runs.some((run) => run.chunks > 1)) entries.push(["darker: odd chunk", mixed(colour(ops ? "other" : "F"), [20, 24, 34], 0.3)]);
  if (anyBar((run, lane, i) => lane.category[i] === WAIT)) entries.push(["waits for another rank", colour("wait")]);
  if (anyBar((run, lane) => lane.messages)) entries.push(["message on its way", colour("message")]);
  if (anyBar(isCollective)) entries.push(["collective", colour("comm")]);
  entries.push(["critical path", colour("path"), true]);
  return legend(entries);
}

function timelineWords() {
  const thin = [["messages", (run, lane) => lane.messages], ["collectives", isCollective]]
    .filter(([, f]) => anyBar(f)).map(([name]) => name).join(" and ");
  return `A row is a pipeline rank; a bar is ${anyBar(isOp) ? "an op" : "a call for one microbatch"}` +
    `${thin ? `; the thin bars below are ${thin}` : ""}.`;
}

function timelines() {
  state.timelines = [];
  const path = make("button", {"aria-pressed": "false", onclick: () => {
    const on = path.getAttribute("aria-pressed") !== "true";
    path.setAttribute("aria-pressed", String(on));
    for (const timeline of state.timelines) { timeline.showPath = on; timeline.later(); }
  }}, "Critical path");
  const button = (text, label, f) => make("button", {"aria-label": label, onclick: f}, text);
  const panels = page.runs.map((run, i) => {
    if (!run.ranks.some((rank) => rank.lanes.some((lane) => lane.n)))
      return make("div", {class: "panel"}, make("p", {class: "empty"}, "This run has no bars: nothing was recorded."));
    const canvas = make("canvas", {id: `timeline-${i}`, role: "application",
      "aria-label": `Time line of plan ${run.plan}: arrow keys choose a bar, plus and minus zoom, Home shows all`});
    const said = make("div", {class: "said", "aria-live": "polite"}, "Choose a bar to read what it is.");
    const timeline = new Timeline(canvas, run, view, (bar) => {
      if (!bar) return said.replaceChildren("Choose a bar to read what it is.");
      const {title, facts} = timeline.facts(bar);
      said.replaceChildren(make("b", {}, title), ...facts.flatMap(([name, value]) => [` · ${name} `, value]));
    });
    state.timelines.push(timeline);
    return make("div", {class: "panel"}, many ? make("div", {class: "name"},
      make("span", {}, make("b", {}, letter(i)), " ", planCode(run.plan)),
      make("span", {class: "soft"}, timeText(run.step))) : null, canvas, said);
  });
  $("timeline").replaceChildren(make("h2", {}, many ? "Time lines, at one scale" : "Time line"),
    make("p", {class: "soft small"}, timelineWords()),
    make("div", {class: "bar"}, button("−", "zoom out", () => view.zoom(1 / 2)), button("+", "zoom in", () => view.zoom(2)),
      button("Whole step", "show the whole step", () => view.fit()), path, make("span", {class: "gap"}),
      make("span", {class: "soft small"}, "Drag to move, ", make("kbd", {}, "Ctrl"), " + wheel to zoom (once clicked, the wheel alone); ",
        make("kbd", {}, "+"), " ", make("kbd", {}, "−"), " ", make("kbd", {}, "Home"), " ", make("kbd", {}, "←↑→↓"), " ", make("kbd", {}, "Enter"))),
    timelineLegend(), ...panels);
}

function chooser() {
  if (!many) return null;
  return make("div", {class: "bar", role: "group", "aria-label": "plan"}, ...page.runs.map((run, i) =>
    make("button", {"aria-pressed": String(i === state.run), title: run.plan, onclick: (event) => {
      const section = event.currentTarget.closest("section").id;
      state.run = i;
      sections();
      document.querySelectorAll(`#${section} [role=group] button`)[i].focus();  // it was made anew
    }}, `Plan ${letter(i)}`)), planCode(page.runs[state.run].plan, "soft"));
}

function shares() {
  const run = page.runs[state.run], canvas = make("canvas", {id: "shares", "aria-label": "Where each rank's time goes"});
  const columns = run.ranks.map((rank) => rank.shares.map((share) =>
    ({name: share.name, value: share.time, colour: shareColour(page, share.name)})));
  const chart = new Columns(canvas, {columns, limit: 0, text: timeText});
  state.redraw.push(() => chart.draw());
  const names = page.shareNames.filter((name) => run.ranks.some((rank) => rank.shares.some((share) => share.name === name)));
  const means = meanShares(run).filter(([name]) => names.includes(name));
  $("shares-section").replaceChildren(make("h2", {}, "Where the time goes"), chooser() || "",
    make("div", {class: "two"}, make("div", {}, make("div", {class: "panel"}, canvas),
      make("p", {class: "soft small"}, "A column is a pipeline rank; its parts add up to the step.")),
    make("div", {class: "scroll"}, make("table", {class: "data"}, make("thead", {}, make("tr", {}, make("th", {}, "mean over ranks"), make("th", {}, "time"), make("th", {}, "share"))),
      make("tbody", {}, ...means.map(([name, time]) => make("tr", {},
        make("td", {}, make("span", {style: "display:flex;gap:.5rem;align-items:center"}, swatch(shareColour(page, name)), name)),
        make("td", {}, timeText(time)), make("td", {}, percentText(time, run.step)))))))));
}

function memory() {
  const run = page.runs[state.run];
  if (!run.ranks.some((rank) => rank.memory.n)) {
    $("memory").replaceChildren(make("h2", {}, "Memory"), make("p", {class: "empty"}, "No memory was recorded."));
    return;
  }
  const present = MEMORY.filter((name, c) => run.ranks.some((rank) => (rank.peak.by[name] || 0) > 0 || rank.memory.by[c].some((b) => b > 0)));
  const over = make("canvas", {id: "memory-ranks", "aria-label": "Memory of each rank at its fullest instant; arrow keys choose a rank"});
  const curve = make("canvas", {id: "memory-curve", "aria-label": "Memory of the chosen rank over time"});
  const words = make("div", {"aria-live": "polite"}), chart = new MemoryChart(curve, run, view);
  const choose = (r) => {
    chart.rank = r;
    state.rank.set(run, r);
    chart.draw();
    const rank = run.ranks[r], peak = rank.peak;
    words.replaceChildren(make("h3", {}, `Rank ${r}${rank.stages ? `, ${rank.stages}` : ""}`),
      make("p", {class: "small"}, `Fullest ${timeText(peak.time)} into the step, ${peak.at}: ${bytesText(peak.bytes)} alive. `,
        `The memory plan reserves ${bytesText(rank.reserved)}${run.memory_limit ? ` of the ${bytesText(run.memory_limit)} that tensors get` : ""}.`),
      make("div", {class: "scroll"}, make("table", {class: "data"}, make("thead", {}, make("tr", {}, make("th", {}, "largest then alive"), make("th", {class: "left"}, "holds"), make("th", {}, "size"))),
        make("tbody", {}, ...rank.largest.map((tensor) => make("tr", {}, make("td", {class: "wrap"}, make("code", {}, tensor.name)),
          make("td", {class: "left"}, tensor.category), make("td", {}, bytesText(tensor.bytes))))))));
  };
  const columns = run.ranks.map((rank) => present.map((name) =>
    ({name: name, value: rank.peak.by[name] || 0, colour: colour(name)})));
  const ranks = new Columns(over, {columns, limit: run.memory_limit, limitName: "memory for tensors", text: bytesText, choose});
  $("memory").replaceChildren(make("h2", {}, "Memory"), chooser() || "", legend(present.map((name) => [name, colour(name)])),
    make("div", {class: "two"}, make("div", {}, make("div", {class: "panel"}, over),
      make("p", {class: "soft small"}, "Each rank at its fullest instant. Choose one to see it over time."),
      make("div", {class: "panel"}, curve)), words));
  state.redraw.push(() => { ranks.draw(); chart.draw(); });
  choose(state.rank.get(run) ?? run.ranks.reduce((best, rank, r) => rank.peak.bytes > run.ranks[best].peak.bytes ? r : best, 0));
  ranks.chosen = chart.rank;
}

function words() {
  const run = page.runs[state.run], list = (lines) => make("ol", {class: "words"}, ...lines.map((line) => make("li", {}, micro(line))));
  $("words").replaceChildren(make("h2", {}, "Critical path"), chooser() || "",
    run.words.length ? list(run.words) : make("p", {class: "empty"}, "Nothing waits for anything."),
    make("h2", {}, "What to change"),
    run.changes.length ? list(run.changes) : make("p", {class: "empty"}, "No change was tried; --advice options or plans simulates some."));
}

function sections() {
  view.listeners = state.timelines.map((timeline) => () => timeline.later());
  state.redraw = [];
  comparison();
  shares();
  memory();
  words();
  for (const draw of state.redraw) draw();
}

// Makes the sections anew; what has the focus in one of them has it afterwards.
function renew() {
  const holder = document.activeElement, section = holder && holder.closest("section");
  const all = () => [...document.querySelectorAll(`#${section.id} button, #${section.id} canvas`)];
  const place = section && section.id ? all().indexOf(holder) : -1;
  sections();
  if (place >= 0) all()[place].focus();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  for (const timeline of state.timelines) timeline.later();
  renew();
  const old = document.querySelector("#timeline .legend");
  if (old) old.replaceWith(timelineLegend());
}

const dark = matchMedia("(prefers-color-scheme: dark)");
document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
head();
timelines();
sections();
for (const timeline of state.timelines) timeline.draw();
let resizing = 0;
addEventListener("resize", () => {
  cancelAnimationFrame(resizing);
  resizing = requestAnimationFrame(() => {
    for (const timeline of state.timelines) timeline.draw();
    for (const draw of state.redraw) draw();
  });
});

// For scripts and tests: what is drawn, as data.
window.meshwright = {
  page, view, timelines: state.timelines,
  bars: (run, rank) => page.runs[run].ranks[rank].lanes.flatMap((lane) => Array.from({length: lane.n}, (_, i) => ({
    stream: lane.stream, title: barTitle(page.runs[run], lane, i), name: page.runs[run].names[lane.name[i]],
    start: lane.start[i], end: lane.end[i], category: lane.category[i], microbatch: lane.microbatch[i],
    stage: lane.stage[i], bytes: lane.bytes[i], flops: lane.flops[i],
    facts: Object.fromEntries(barFacts(page.runs[run], lane, i))}))),
  box: (run, rank, lane, index) => {
    const canvas = state.timelines[run].canvas.getBoundingClientRect(), box = state.timelines[run].box({rank, lane, index});
    return {left: canvas.left + box.left, right: canvas.left + box.right, top: canvas.top + box.top,
            bottom: canvas.top + box.top + box.height};
  },
};
