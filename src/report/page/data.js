// What the page is made of: texts and figures as JSON, bars and memory curves packed (page_data.cc
// says how). Times are nanoseconds, sizes bytes.

const MEMORY = ["weights", "gradients", "optimizer", "activations", "communication buffers", "temporaries", "data and metrics"];
const COMPUTE = 0, COMM = 1, WAIT = 3;  // categories of spans

class Reader {
  constructor(base64) {
    const text = atob(base64);
    this.bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; ++i) this.bytes[i] = text.charCodeAt(i);
    this.at = 0;
  }
  // Seven bits a byte, the lowest first. Beyond 32 bits, so with products in place of shifts.
  number() {
    let value = 0, scale = 1, byte;
    do {
      byte = this.bytes[this.at++];
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte & 128);
    return value;
  }
  signed() {
    const n = this.number();
    return n % 2 ? -(n + 1) / 2 : n / 2;
  }
}

// One stream of one rank: arrays by bar, in order of start.
function readLane(reader, names) {
  const stream = reader.number(), label = names[reader.number()], n = reader.number();
  const lane = {
    stream, label, n, messages: label.startsWith("messages"),
    start: new Float64Array(n), end: new Float64Array(n), name: new Uint32Array(n),
    category: new Uint8Array(n), microbatch: new Int32Array(n), stage: new Int32Array(n),
    bytes: new Float64Array(n), flops: new Float64Array(n),
  };
  const last = new Map();  // bar before this one by name
  let before = 0;
  for (let i = 0; i < n; ++i) {
    const head = reader.number(), name = Math.floor(head / 8), same = head % 8;
    const previous = last.get(name);
    lane.name[i] = name;
    lane.start[i] = before + reader.signed();
    before = lane.end[i] = lane.start[i] + reader.number();
    lane.category[i] = same & 1 ? lane.category[previous] : reader.number();
    lane.stage[i] = same & 1 ? lane.stage[previous] : reader.number() - 1;
    lane.bytes[i] = same & 2 ? lane.bytes[previous] : reader.number();
    lane.flops[i] = same & 2 ? lane.flops[previous] : reader.number();
    lane.microbatch[i] = same & 4 ? lane.microbatch[previous] + 1 : reader.number() - 1;
    last.set(name, i);
  }
  return lane;
}

// A rank's memory: what it holds from each time to the next, by category.
function readMemory(reader) {
  const n = reader.number(), time = new Float64Array(n), total = new Float64Array(n);
  const by = MEMORY.map(() => new Float64Array(n));
  let at = 0;
  for (let i = 0; i < n; ++i) {
    time[i] = at += reader.number();
    for (let c = 0; c < by.length; ++c) {
      by[c][i] = (i ? by[c][i - 1] : 0) + reader.signed();
      total[i] += by[c][i];
    }
  }
  return {n, time, by, total};
}

function readPage() {
  const page = JSON.parse(document.getElementById("figures").textContent);
  const reader = new Reader(document.getElementById("packed").textContent.trim());
  for (const run of page.runs) {
    run.kinds = run.names.map((name) => name.split(" ")[0]);
    run.length = run.step;  // or of the bars: those of a step without a flush go on in the next
    run.ranks.forEach((rank) => {
      rank.lanes = [];
      for (let left = reader.number(); left > 0; --left) rank.lanes.push(readLane(reader, run.names));
      rank.memory = readMemory(reader);
      for (const lane of rank.lanes) for (const end of lane.end) run.length = Math.max(run.length, end);
    });
  }
  return page;
}

// The last index whose start is at most `time`; -1: none.
function lastAt(starts, time) {
  let low = 0, high = starts.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (starts[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// The first bar of a lane that may reach beyond a time: an earlier one may end behind later ones,
// which are waits inside it.
function firstShown(lane, time) {
  if (!lane.reach) {
    lane.reach = Float64Array.from(lane.end);
    for (let i = 1; i < lane.n; ++i) lane.reach[i] = Math.max(lane.reach[i], lane.reach[i - 1]);
  }
  return lastAt(lane.reach, time) + 1;
}

// A number with three digits, as the command line prints it.
function three(x) {
  return x < 9.995 ? x.toFixed(2) : x < 99.95 ? x.toFixed(1) : x.toFixed(0);
}
function timeText(ns) {
  const sign = ns < 0 ? "−" : "", x = Math.abs(ns);
  if (x < 999.5) return `${sign}${x.toFixed(0)} ns`;
  if (x < 999.5e3) return `${sign}${three(x / 1e3)} µs`;
  if (x < 999.5e6) return `${sign}${three(x / 1e6)} ms`;
  if (x < 59.95e9) return `${sign}${three(x / 1e9)} s`;
  const whole = Math.round(x / 1e9), minutes = Math.floor(whole / 60), hours = Math.floor(minutes / 60);
  const two = (n) => String(n).padStart(2, "0");
  if (minutes < 60) return `${sign}${minutes} min ${two(whole - 60 * minutes)} s`;
  if (hours < 48) return `${sign}${hours} h ${two(minutes - 60 * hours)} min`;
  return `${sign}${(x / 86400e9).toFixed(1)} days`;
}
// An instant, to seven digits, or to as many as tell the ends of what takes `span` apart.
function instantText(ns, span) {
  const [unit, name] = ns >= 1e9 ? [1e9, "s"] : ns >= 1e6 ? [1e6, "ms"] : [1e3, "µs"];
  if (ns === 0) return "0";
  const power = (x) => Math.floor(Math.log10(x)), digits = power(ns) - power(Math.max(10, span)) + 2;
  return `${Number((ns / unit).toPrecision(Math.max(7, digits)))} ${name}`;
}
// The command line's own words, with the page's sign for micro.
const micro = (text) => text.replace(/(\d) us\b/g, "$1 µs");
function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let u = 0, x = bytes;
  while (x >= 1023.5 && u + 1 < units.length) { x /= 1024; ++u; }  // 1023.5 would be 1024
  return u ? `${three(x)} ${units[u]}` : `${Math.round(x)} B`;
}
function siText(x, unit) {
  const units = ["", "k", "M", "G", "T", "P", "E"];
  let u = 0;
  while (x >= 999.5 && u + 1 < units.length) { x /= 1000; ++u; }
  return `${u ? three(x) : x.toFixed(0)} ${units[u]}${unit}`;
}
function percentText(part, whole) {
  return whole > 0 ? `${(100 * part / whole).toFixed(1)} %` : "–";
}

const CALL = /^(F|I|W|B|UPDATE|SHARE|VALIDATE)$/;  // kinds of bars that are no ops
// "B of stage 3, microbatch 7".
function barTitle(run, lane, i) {
  const name = run.names[lane.name[i]], kind = run.kinds[lane.name[i]];
  let text = CALL.test(kind) && lane.stage[i] >= 0 ? `${kind} of stage ${lane.stage[i]}` : name;
  if (lane.category[i] === COMPUTE || lane.category[i] === COMM)
    if (lane.microbatch[i] >= 0 && kind !== "UPDATE") text += `, microbatch ${lane.microbatch[i]}`;
  return text;
}
// What is to be said of a bar: [what, value] each.
function barFacts(run, lane, i) {
  const takes = lane.end[i] - lane.start[i];
  const facts = [["takes", timeText(takes)],
                 ["from", `${instantText(lane.start[i], takes)} to ${instantText(lane.end[i], takes)}`]];
  if (lane.category[i] === WAIT && lane.stage[i] >= 0)
    facts.push(["before", `stage ${lane.stage[i]}, microbatch ${lane.microbatch[i]}`]);
  if (lane.bytes[i] > 0) facts.push([lane.category[i] === COMPUTE ? "sends" : "bytes", bytesText(lane.bytes[i])]);
  if (lane.flops[i] > 0) {
    const rate = takes > 0 ? `, ${siText(lane.flops[i] / takes * 1e9, "FLOP/s")}` : "";  // 0: another op's kernel does it
    facts.push(["FLOPs", siText(lane.flops[i], "FLOP") + rate]);
  }
  return facts;
}
