// Columns by rank, and a rank's memory over time.

// A colour for a share of the step by its name, the same in all runs.
function shareColour(page, name) {
  if (name === "computation") return colour("compute");
  if (name === "host and stream gaps") return colour("gaps");
  if (name === "idle at the end") return colour("idle");
  const family = name.startsWith("wait") ? "wait" : "comm";
  const siblings = page.shareNames.filter((other) => other.startsWith("wait") === (family === "wait") &&
    /^(wait|exposed)/.test(other));
  const at = siblings.indexOf(name), many = Math.max(1, siblings.length - 1);
  return mixed(colour(family), colour(family === "wait" ? "soft" : "panel"), 0.55 * at / many);
}

// A column a rank, made of parts. `columns`: [rank] of {name, value, colour}; `limit` may be 0.
class Columns {
  constructor(canvas, {columns, limit, limitName, text, choose}) {
    Object.assign(this, {canvas, columns, limit, limitName, text, choose, chosen: 0, height: 190});
    canvas.tabIndex = 0;
    const rankAt = (event) => {
      const x = event.clientX - canvas.getBoundingClientRect().left - LEFT;
      const r = Math.floor(x / ((this.width - LEFT) / this.columns.length));
      return x >= 0 && r < this.columns.length ? r : -1;
    };
    canvas.addEventListener("pointermove", (event) => {
      const r = rankAt(event);
      showTip(event, r >= 0 && {title: `rank ${r}`, facts: this.columns[r].filter((part) => part.value > 0)
        .map((part) => [part.name, this.text(part.value)])});
    });
    canvas.addEventListener("pointerleave", () => showTip(null));
    canvas.addEventListener("pointerdown", (event) => rankAt(event) >= 0 && this.pick(rankAt(event)));
    canvas.addEventListener("keydown", (event) => {
      const by = {ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9}[event.key];
      if (!by) return;
      event.preventDefault();
      this.pick(Math.max(0, Math.min(this.columns.length - 1, this.chosen + by)));
    });
  }
  pick(r) {
    this.chosen = r;
    this.draw();
    if (this.choose) this.choose(r);
  }
  draw() {
    const {context, width} = prepare(this.canvas, this.height);
    this.width = width;
    const top = 16, bottom = this.height - 20, n = this.columns.length, pitch = (width - LEFT) / n;
    const totals = this.columns.map((parts) => parts.reduce((sum, part) => sum + part.value, 0));
    // A limit far above all columns would make them too small to read; it is only named then.
    const limit = Math.max(...totals) < 0.2 * this.limit ? 0 : this.limit;
    const most = Math.max(limit, ...totals) * 1.06 || 1, y = (v) => bottom - v / most * (bottom - top);
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let k = 0; k <= 2; ++k) {
      const value = Math.max(limit, ...totals) * k / 2;
      context.fillStyle = css(colour("line"));
      context.fillRect(LEFT, Math.round(y(value)), width - LEFT, 1);
      context.fillStyle = css(colour("soft"));
      context.fillText(this.text(value), LEFT - 6, y(value), LEFT - 8);
    }
    const bar = Math.min(64, Math.max(1, pitch * (pitch > 6 ? 0.72 : 0.9)));
    this.columns.forEach((parts, r) => {
      const x = LEFT + r * pitch + (pitch - bar) / 2;
      let value = 0;
      for (const part of parts) {
        context.fillStyle = css(part.colour);
        context.fillRect(x, y(value + part.value), bar, Math.max(0, y(value) - y(value + part.value)));
        value += part.value;
      }
      if (this.choose && r === this.chosen) {
        context.strokeStyle = css(colour("focus"));
        context.lineWidth = 2;
        context.strokeRect(x - 1, y(value) - 1, bar + 2, bottom - y(value) + 2);
      }
      if (r % Math.ceil(n / Math.max(1, Math.floor((width - LEFT) / 34))) === 0) {
        context.fillStyle = css(colour("soft"));
        context.textAlign = "center";
        context.fillText(`${r}`, x + bar / 2, bottom + 11);
      }
    });
    if (this.limit > limit) {
      context.fillStyle = css(colour("soft"));
      context.textAlign = "right";
      context.fillText(`${this.limitName}: ${this.text(this.limit)}`, width - 4, top - 4);
    }
    if (limit > 0) {
      context.fillStyle = css(colour("path"));
      context.fillRect(LEFT, Math.round(y(limit)) - 1, width - LEFT, 2);
      context.textAlign = "right";
      context.fillText(this.limitName, width - 4, y(limit) + 9);
    }
  }
}

// What a rank holds over time, by category, in the view of the time lines.
class MemoryChart {
  constructor(canvas, run, view) {
    Object.assign(this, {canvas, run, view, rank: 0, height: 210});
    view.listeners.push(() => this.draw());
    canvas.addEventListener("pointermove", (event) => {
      const memory = this.run.ranks[this.rank].memory;
      const x = event.clientX - canvas.getBoundingClientRect().left;
      const time = view.begin + (x - LEFT) / (this.width - LEFT) * (view.end - view.begin);
      const i = lastAt(memory.time, time);
      if (x < LEFT || i < 0 || time > this.run.length) return showTip(null);
      showTip(event, {title: `${bytesText(memory.total[i])} at ${timeText(time)}`, facts: MEMORY
        .map((name, c) => [name, memory.by[c][i]]).filter((fact) => fact[1] > 0)
        .map(([name, bytes]) => [name, bytesText(bytes)])});
    });
    canvas.addEventListener("pointerleave", () => showTip(null));
  }
  draw() {
    const {context, width} = prepare(this.canvas, this.height);
    this.width = width;
    const memory = this.run.ranks[this.rank].memory, peak = this.run.ranks[this.rank].peak;
    const top = TOP + 6, bottom = this.height - 8, most = Math.max(1, ...memory.total) * 1.1;
    const x = (time) => LEFT + (time - this.view.begin) / (this.view.end - this.view.begin) * (width - LEFT);
    const y = (bytes) => bottom - bytes / most * (bottom - top);
    drawAxis(context, this.view, width, bottom);
    context.textAlign = "right";
    context.fillStyle = css(colour("soft"));
    for (const share of [0.5, 1]) {
      const bytes = most / 1.1 * share;
      context.fillText(bytesText(bytes), LEFT - 6, y(bytes));
    }
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT, this.height);
    context.clip();
    const first = Math.max(0, lastAt(memory.time, this.view.begin));
    const below = new Float64Array(memory.n);
    MEMORY.forEach((name, c) => {
      context.beginPath();
      let last = first;
      for (let i = first; i < memory.n && memory.time[i] <= this.view.end; ++i) last = i;
      const until = last + 1 < memory.n ? memory.time[last + 1] : this.run.length;
      const upper = (i) => y(below[i] + memory.by[c][i]);
      context.moveTo(x(memory.time[first]), y(below[first]));
      for (let i = first; i <= last; ++i) {
        const next = i < last ? memory.time[i + 1] : until;
        context.lineTo(x(memory.time[i]), upper(i));
        context.lineTo(x(next), upper(i));
      }
      for (let i = last; i >= first; --i) {
        const next = i < last ? memory.time[i + 1] : until;
        context.lineTo(x(next), y(below[i]));
        context.lineTo(x(memory.time[i]), y(below[i]));
      }
      context.closePath();
      context.fillStyle = css(colour(name));
      context.fill();
      for (let i = first; i <= last; ++i) below[i] += memory.by[c][i];
    });
    if (peak.bytes > 0) {
      const px = x(peak.time), py = y(peak.bytes);
      context.strokeStyle = css(colour("path"));
      context.lineWidth = 1.5;
      context.beginPath();
      context.moveTo(px, bottom);
      context.lineTo(px, py);
      context.stroke();
      context.fillStyle = css(colour("path"));
      context.beginPath();
      context.arc(px, py, 3.5, 0, 7);
      context.fill();
      const text = `fullest: ${bytesText(peak.bytes)}`, wide = context.measureText(text).width;
      context.textAlign = "left";
      context.fillText(text, Math.max(LEFT + 2, px + 8 + wide > width - 4 ? px - 8 - wide : px + 8), Math.max(TOP + 3, py - 9));
    }
    context.restore();
  }
}
