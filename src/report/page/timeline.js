// The time line of one run on a canvas: a row a rank, and the view that all time lines share.

// What part of the step is seen, in nanoseconds.
class View {
  constructor(length) {
    this.length = length;
    this.begin = 0;
    this.end = length;
    this.listeners = [];
  }
  set(begin, end) {
    const span = Math.min(this.length, Math.max(end - begin, Math.max(20, this.length * 1e-7)));
    this.begin = Math.max(0, Math.min(begin, this.length - span));
    this.end = this.begin + span;
    for (const listener of this.listeners) listener();
  }
  zoom(factor, at = (this.begin + this.end) / 2) {
    this.set(at - (at - this.begin) / factor, at + (this.end - at) / factor);
  }
  pan(share) {
    const by = share * (this.end - this.begin);
    this.set(this.begin + by, this.end + by);
  }
  fit() { this.set(0, this.length); }
}

const colourCache = new Map();
// The colour of a CSS variable as [r, g, b].
function colour(name) {
  const key = document.documentElement.dataset.theme + name;
  if (!colourCache.has(key)) {
    const text = getComputedStyle(document.documentElement).getPropertyValue("--" + name.replaceAll(" ", "-")).trim();
    const n = parseInt(text.slice(1), 16);
    colourCache.set(key, [n >> 16, (n >> 8) & 255, n & 255]);
  }
  return colourCache.get(key);
}
const css = (c) => `rgb(${c[0]},${c[1]},${c[2]})`;
const mixed = (a, b, share) => a.map((x, i) => Math.round(x + (b[i] - x) * share));
const luminance = (c) => 0.299 * c[0] + 0.587 * c[1] + 0.114 * c[2];

// Sizes a canvas for the screen; its context, in CSS pixels.
function prepare(canvas, height) {
  const ratio = Math.min(2, window.devicePixelRatio || 1), width = Math.max(100, canvas.clientWidth);
  canvas.style.height = `${height}px`;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d", {willReadFrequently: true});
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = '11px system-ui, "Segoe UI", Roboto, Arial, sans-serif';
  return {context, ratio, width};
}

// Times for the axis: 1, 2 or 5 times a power of ten apart, about `count` of them.
function ticks(begin, end, count) {
  const rough = (end - begin) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough));
  const steps = [0.5, 1, 2, 5, 10].map((k) => k * power), above = steps.findIndex((s) => s >= rough);
  const step = steps[(end - begin) / steps[above] < 2 ? above - 1 : above];  // two at the least
  const times = [];
  for (let t = Math.ceil(begin / step) * step; t <= end; t += step) times.push(t);
  const unit = end >= 1e9 ? [1e9, "s"] : end >= 1e6 ? [1e6, "ms"] : end >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  const digits = Math.max(0, -Math.floor(Math.log10(step / unit[0]) + 1e-9));
  return times.map((t) => ({time: t, text: `${(t / unit[0]).toFixed(digits)} ${unit[1]}`}));
}

const KINDS = ["other", "F", "I", "W", "B", "UPDATE"];
let painted = null;
// Waits, messages, collectives, then each kind for even and for odd chunks.
function palette() {
  const theme = document.documentElement.dataset.theme;
  if (painted?.theme !== theme) {
    const kinds = KINDS.flatMap((kind) => [colour(kind), mixed(colour(kind), [20, 24, 34], 0.3)]);
    painted = {theme, colours: [colour("wait"), colour("message"), colour("comm"), ...kinds]};
  }
  return painted.colours;
}

const LEFT = 58, TOP = 22;  // of the bars, in CSS pixels

function drawAxis(context, view, width, bottom) {
  const scale = (width - LEFT) / (view.end - view.begin);
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (const tick of ticks(view.begin, view.end, (width - LEFT) / 110)) {
    const x = LEFT + (tick.time - view.begin) * scale;
    context.fillStyle = css(colour("line"));
    context.fillRect(x, TOP - 5, 1, bottom - TOP + 5);
    context.fillStyle = css(colour("soft"));
    if (x < width - 22) context.fillText(tick.text, Math.max(x, LEFT + 14), TOP / 2 - 1);
  }
}

// Which lanes of a rank lie in each strip of its row. Each has its own, but for the messages of a rank
// that sends to more than a few.
const MESSAGE_STRIPS = 4;
function stripsOf(rank) {
  const together = rank.lanes.filter((lane) => lane.messages).length > MESSAGE_STRIPS, strips = [];
  let messages = null;
  rank.lanes.forEach((lane, l) => {
    if (together && lane.messages && messages) return messages.push(l);
    strips.push([l]);
    if (lane.messages) messages = strips[strips.length - 1];
  });
  return strips;
}

class Timeline {
  constructor(canvas, run, view, tell) {
    Object.assign(this, {canvas, run, view, tell, chosen: null, hovered: null, showPath: false});
    const ranks = run.ranks.length;
    this.row = Math.max(7, Math.min(30, Math.floor(560 / Math.max(1, ranks))));
    this.gap = this.row >= 12 ? 3 : 1;
    this.labelled = this.row >= 13;
    // Beside computation: messages and up to two groups of devices in its row, more below.
    this.thin = Math.max(1, Math.min(4, Math.floor(this.row * 0.2)));
    this.strips = run.ranks.map(stripsOf);
    this.row += this.thin * Math.max(0, ...this.strips.map((strips) => strips.length - 4));
    this.height = TOP + ranks * this.row + 4;
    view.listeners.push(() => this.later());
    this.listen();
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }
  x(time) { return LEFT + (time - this.view.begin) / (this.view.end - this.view.begin) * (this.width - LEFT); }
  time(x) { return this.view.begin + (x - LEFT) / (this.width - LEFT) * (this.view.end - this.view.begin); }

  // Rows of a rank in CSS pixels: computation and waits above, other streams thin below.
  lanesOf(r) {
    const top = TOP + r * this.row, main = this.row - this.gap - this.thin * (this.strips[r].length - 1);
    const places = [];
    this.strips[r].forEach((lanes, s) => {
      for (const l of lanes)
        places[l] = s === 0 ? {top, height: main} : {top: top + main + this.thin * (s - 1), height: this.thin};
    });
    return places;
  }

  // Which colour of the palette each bar has.
  paints(lane) {
    const ranks = this.run.ranks.length, paint = new Uint8Array(lane.n);
    const kinds = this.run.kinds.map((kind) => Math.max(0, KINDS.indexOf(kind)));
    for (let i = 0; i < lane.n; ++i) {
      const odd = lane.stage[i] < 0 ? 0 : Math.floor(lane.stage[i] / ranks) % 2;
      paint[i] = lane.category[i] === WAIT ? 0 : lane.category[i] === COMM ? (lane.messages ? 1 : 2)
        : 3 + 2 * kinds[lane.name[i]] + odd;
    }
    return paint;
  }
  fill(lane, i) {
    lane.paint ||= this.paints(lane);
    return palette()[lane.paint[i]];
  }

  draw() {
    const prepared = prepare(this.canvas, this.height);
    this.width = prepared.width;
    const {context, ratio} = prepared;
    drawAxis(context, this.view, this.width, this.height);
    const pixels = Math.max(1, Math.round((this.width - LEFT) * ratio));
    const track = colour("track");
    this.run.ranks.forEach((rank, r) => {
      const lanes = this.lanesOf(r);
      this.strips[r].forEach((inside, s) => {
        const place = lanes[inside[0]], height = Math.max(1, Math.round(place.height * ratio));
        const strip = this.strip(inside.map((l) => rank.lanes[l]), pixels, ratio, s === 0 ? track : colour("panel"));
        const image = context.createImageData(pixels, height);
        const words = new Uint32Array(image.data.buffer);
        for (let y = 0; y < height; ++y) words.set(strip, y * pixels);
        context.putImageData(image, Math.round(LEFT * ratio), Math.round(place.top * ratio));
      });
      if (this.row >= 11 || r % Math.ceil(12 / this.row) === 0) {
        context.fillStyle = css(colour("soft"));
        context.textAlign = "right";
        context.textBaseline = "middle";
        context.fillText(`rank ${r}`, LEFT - 7, lanes[0].top + lanes[0].height / 2 + 0.5);
      }
      if (this.labelled) this.label(context, rank.lanes[0], lanes[0]);
    });
    if (this.showPath) this.drawPath(context);
    this.outline(context, this.hovered, "ink");
    this.outline(context, this.chosen, "focus");
  }

  // One line of pixels: each the mean of what is there, so that nothing is too small to be seen. Waits
  // lie on the call that they are part of.
  strip(lanes, pixels, ratio, empty) {
    const sum = this.sum?.length === 4 * pixels ? this.sum.fill(0) : (this.sum = new Float32Array(4 * pixels));
    for (const lane of lanes) this.addBars(lane, sum, pixels, ratio);
    const line = new Uint32Array(pixels);
    for (let p = 0; p < pixels; ++p) {
      const at = 4 * p, cover = sum[at + 3], part = cover > 1 ? 1 / cover : 1, rest = cover < 1 ? 1 - cover : 0;
      line[p] = 0xff000000 | (sum[at + 2] * part + rest * empty[2] + 0.5) << 16 |
        (sum[at + 1] * part + rest * empty[1] + 0.5) << 8 | (sum[at] * part + rest * empty[0] + 0.5);
    }
    return line;
  }

  addBars(lane, sum, pixels, ratio) {
    const {begin, end} = this.view, scale = pixels / (end - begin), colours = palette();
    const paint = lane.paint ||= this.paints(lane);
    for (let i = firstShown(lane, begin); i < lane.n && lane.start[i] < end; ++i) {
      const c = colours[paint[i]], r = c[0], g = c[1], b = c[2], over = paint[i] === 0;
      const left = (lane.start[i] - begin) * scale, wide = (lane.end[i] - lane.start[i]) * scale;
      const inset = wide > 3 * ratio ? Math.min(ratio, wide * 0.15) : 0;
      const x0 = left > 0 ? left : 0, x1 = Math.min(pixels, left + wide - inset);
      for (let p = Math.floor(x0); p < x1; ++p) {
        const share = (p + 1 < x1 ? p + 1 : x1) - (p > x0 ? p : x0), at = 4 * p, keep = over ? 1 - share : 1;
        sum[at] = sum[at] * keep + share * r;
        sum[at + 1] = sum[at + 1] * keep + share * g;
        sum[at + 2] = sum[at + 2] * keep + share * b;
        sum[at + 3] = sum[at + 3] * keep + share;
      }
    }
  }

  // Numbers of microbatches where they have room.
  label(context, lane, place) {
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let i = firstShown(lane, this.view.begin); i < lane.n; ++i) {
      if (lane.start[i] >= this.view.end) break;
      const x0 = Math.max(LEFT, this.x(lane.start[i])), x1 = Math.min(this.width, this.x(lane.end[i]));
      const kind = this.run.kinds[lane.name[i]], room = x1 - x0;
      const holds = i + 1 < lane.n && lane.start[i + 1] < lane.end[i];  // waits lie in it
      if (room < 15 || holds) continue;
      const c = this.fill(lane, i);
      let text = lane.category[i] === WAIT ? (room > 70 ? "waits" : "") : `${lane.microbatch[i]}`;
      if (lane.category[i] === COMPUTE && room > 34 && kind.length === 1) text = `${kind} ${text}`;
      if (kind === "UPDATE") text = room > 54 ? "UPDATE" : "U";
      if (lane.category[i] === COMPUTE && this.run.kinds[lane.name[i]].length > 1 && kind !== "UPDATE")
        text = room > 7 * kind.length ? kind : "";
      context.fillStyle = lane.category[i] === WAIT ? css(colour("soft")) : luminance(c) > 110 ? "#10151b" : "#fff";
      if (text && text !== "-1") context.fillText(text, (x0 + x1) / 2, place.top + place.height / 2 + 0.5);
    }
  }

  // The longest chain of work and messages.
  drawPath(context) {
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, this.width - LEFT, this.height);
    context.clip();
    context.strokeStyle = css(colour("path"));
    context.lineWidth = 2;
    context.beginPath();
    let before = null;
    for (const [rank, begin, end, message] of this.run.path) {
      if (message) continue;
      const lanes = this.lanesOf(rank), y = lanes[0].top + lanes[0].height - 1;
      if (before) { context.moveTo(before[0], before[1]); context.lineTo(this.x(begin), y); }
      context.moveTo(this.x(begin), y);
      context.lineTo(this.x(end), y);
      before = [this.x(end), y];
    }
    context.stroke();
    context.restore();
  }

  outline(context, bar, name) {
    if (!bar) return;
    const box = this.box(bar);
    if (!box || box.right < LEFT || box.left > this.width) return;
    context.strokeStyle = css(colour(name));
    context.lineWidth = 2;
    const left = Math.max(LEFT, box.left), right = Math.min(this.width, box.right);
    context.strokeRect(left, box.top + 0.5, Math.max(2, right - left), box.height - 1);
  }

  // Where a bar {rank, lane, index} is drawn, in CSS pixels of the canvas.
  box(bar) {
    const lane = this.run.ranks[bar.rank].lanes[bar.lane], place = this.lanesOf(bar.rank)[bar.lane];
    return {left: this.x(lane.start[bar.index]), right: this.x(lane.end[bar.index]), top: place.top,
            height: place.height};
  }

  // The bar at a place of the canvas, the inner one where one lies in another; null: none.
  at(x, y) {
    const r = Math.floor((y - TOP) / this.row);
    if (x < LEFT || r < 0 || r >= this.run.ranks.length) return null;
    const lanes = this.lanesOf(r), time = this.time(x), slack = 1.5 * (this.time(x + 1) - time);
    const inside = this.strips[r].findLast((strip, s) => s === 0 || y >= lanes[strip[0]].top) || [];
    const last = new Map(inside.map((l) => [l, lastAt(this.run.ranks[r].lanes[l].start, time)]));
    for (const l of inside) {
      const lane = this.run.ranks[r].lanes[l];
      for (let i = last.get(l); i >= 0 && i > last.get(l) - 50; --i)
        if (lane.end[i] >= time) return {rank: r, lane: l, index: i};
    }
    for (const l of inside) {
      const lane = this.run.ranks[r].lanes[l];
      for (const i of [last.get(l), last.get(l) + 1])
        if (i >= 0 && i < lane.n && lane.start[i] - slack <= time && time <= lane.end[i] + slack)
          return {rank: r, lane: l, index: i};
    }
    return null;
  }

  choose(bar, reveal) {
    this.chosen = bar;
    if (bar && reveal) {
      const lane = this.run.ranks[bar.rank].lanes[bar.lane];
      const begin = lane.start[bar.index], end = lane.end[bar.index], span = this.view.end - this.view.begin;
      if (begin < this.view.begin || end > this.view.end) this.view.set((begin + end - span) / 2, (begin + end + span) / 2);
    }
    this.tell(bar);
    this.later();
  }

  listen() {
    const canvas = this.canvas;
    canvas.tabIndex = 0;
    canvas.classList.add("drag");
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("wheel", (event) => {
      const zooms = event.ctrlKey || event.metaKey || document.activeElement === canvas;
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
        event.preventDefault();
        this.view.pan((event.deltaX || event.deltaY) / 900);
      } else if (zooms) {
        event.preventDefault();
        this.view.zoom(Math.exp(-event.deltaY / 320), this.time(Math.max(LEFT, place(event)[0])));
      }
    }, {passive: false});
    canvas.addEventListener("pointerdown", (event) => {
      this.drag = {x: event.clientX, begin: this.view.begin, end: this.view.end, moved: false};
      canvas.setPointerCapture(event.pointerId);
      canvas.classList.add("dragging");
      canvas.focus({preventScroll: true});
    });
    canvas.addEventListener("pointermove", (event) => {
      if (this.drag) {
        const by = (this.drag.x - event.clientX) / (this.width - LEFT) * (this.drag.end - this.drag.begin);
        this.drag.moved ||= Math.abs(event.clientX - this.drag.x) > 3;
        if (this.drag.moved) this.view.set(this.drag.begin + by, this.drag.end + by);
        return;
      }
      this.hovered = this.at(...place(event));
      showTip(event, this.hovered && this.facts(this.hovered));
      this.later();
    });
    canvas.addEventListener("pointerup", (event) => {
      if (this.drag && !this.drag.moved) this.choose(this.at(...place(event)));
      this.drag = null;
      canvas.classList.remove("dragging");
    });
    canvas.addEventListener("pointercancel", () => {  // a touch that scrolls the page
      this.drag = null;
      canvas.classList.remove("dragging");
    });
    canvas.addEventListener("pointerleave", () => { this.hovered = null; showTip(null); this.later(); });
    canvas.addEventListener("dblclick", (event) => this.view.zoom(3, this.time(place(event)[0])));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  facts(bar) {
    const lane = this.run.ranks[bar.rank].lanes[bar.lane];
    return {title: barTitle(this.run, lane, bar.index),
            facts: [["rank", `${bar.rank}${lane.label === "compute" ? "" : `, ${lane.label}`}`],
                    ...barFacts(this.run, lane, bar.index)]};
  }

  key(event) {
    const shift = event.shiftKey, keys = {
      "+": () => this.view.zoom(1.6), "=": () => this.view.zoom(1.6), "-": () => this.view.zoom(1 / 1.6),
      "0": () => this.view.fit(), Home: () => this.view.fit(), Escape: () => this.choose(null),
      ArrowLeft: () => shift ? this.view.pan(-0.2) : this.step(-1),
      ArrowRight: () => shift ? this.view.pan(0.2) : this.step(1),
      ArrowUp: () => this.move(-1), ArrowDown: () => this.move(1),
      Enter: () => this.chosen && this.zoomTo(this.chosen),
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  }
  // To the bar before or behind the chosen one.
  step(by) {
    if (!this.chosen) return this.move(0);
    const lane = this.run.ranks[this.chosen.rank].lanes[this.chosen.lane];
    const index = Math.max(0, Math.min(lane.n - 1, this.chosen.index + by));
    this.choose({...this.chosen, index}, true);
  }
  // To the bar at the same time of the rank above or below.
  move(by) {
    const now = this.chosen, ranks = this.run.ranks.length;
    const rank = Math.max(0, Math.min(ranks - 1, (now ? now.rank : 0) + by));
    const lane = this.run.ranks[rank].lanes[0];
    if (!lane || !lane.n) return;
    const time = now ? this.run.ranks[now.rank].lanes[now.lane].start[now.index] : this.view.begin;
    this.choose({rank, lane: 0, index: Math.max(0, lastAt(lane.start, time))}, true);
  }
  zoomTo(bar) {
    const lane = this.run.ranks[bar.rank].lanes[bar.lane], begin = lane.start[bar.index], end = lane.end[bar.index];
    const margin = Math.max(end - begin, this.view.length * 1e-5);
    this.view.set(begin - margin, end + margin);
  }
}
