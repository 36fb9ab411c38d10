// Draws the views of a network at a step. A figure has draw(pen, view, at, moment) and say(view, at, moment); `pen`
// knows the canvas, its size and the colours. `at` is the step, -1 before the first.
"use strict";

const at2 = (array, row, column) => array.values[row * array.shape[1] + column];
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const percent = (value) => `${Math.round(100 * value)}%`;

function pen(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(200, canvas.clientWidth || canvas.parentElement.clientWidth);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const c = canvas.getContext("2d");
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.font = "11px ui-monospace, 'DejaVu Sans Mono', monospace";
  c.textBaseline = "middle";
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  return { c, width, height, color, text(words, x, y, paint, align = "left") {
    c.fillStyle = color(paint || "soft"); c.textAlign = align; c.fillText(words, x, y);
  } };
}

// A grid of numbers as colours: `shades` is [[array, colour], ...]; row r, column s is shade(r, s) in [-1, 1].
function grid(p, x, y, width, height, rows, columns, paint) {
  const image = document.createElement("canvas");
  image.width = Math.max(1, columns); image.height = Math.max(1, rows);
  const c = image.getContext("2d");
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++)
      for (const [value, colour] of paint(row, column)) {
        c.globalAlpha = clamp(value, 0, 1); c.fillStyle = colour; c.fillRect(column, row, 1, 1);
      }
  p.c.imageSmoothingEnabled = false;
  p.c.drawImage(image, x, y, width, height);
  p.c.strokeStyle = p.color("faint"); p.c.lineWidth = 1; p.c.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
}

function cursor(p, x, y, width, height, steps, at) {
  if (at < 0) return;
  const size = width / steps;
  p.c.strokeStyle = p.color("ink"); p.c.lineWidth = 1.2;
  p.c.strokeRect(x + at * size, y - 1, Math.max(size, 2), height + 2);
}

const signed = (p, array, value) => {
  const most = Math.max(Math.abs(array.low), Math.abs(array.high), 1e-9);
  return [[Math.abs(value) / most, p.color(value < 0 ? "write" : "read")]];
};

const labels = (p, names, x, y, size, along, align, most = 18) => {
  if (!names) return;
  const every = Math.max(1, Math.ceil((along === "y" ? 12 : 9 + 6.6 * Math.max(...names.map((n) => n.length))) / size));
  for (let n = 0; n < names.length; n += every) {
    const words = names[n].length > most ? `${names[n].slice(0, most - 1)}…` : names[n];
    if (along === "y") p.text(words, x, y + (n + 0.5) * size, "soft", align);
    else p.text(words, x + (n + 0.5) * size, y, "soft", "center");
  }
};

const symbol = (moment, step) => (moment.reads[step] >= 0 ? moment.inputs[moment.reads[step]] : "");
const peak = (array, row) => {
  let best = 0;
  for (let n = 1; n < array.shape[1]; n++) if (Math.abs(at2(array, row, n)) > Math.abs(at2(array, row, best))) best = n;
  return [best, at2(array, row, best)];
};

const figures = {};

// Keys and heads in the plane or on the sphere -------------------------------------------------------------------------

const turned = new WeakMap(); // view -> [yaw, pitch]

function spacePoints(view) {
  if (view.points) return view.points;
  const { read, write } = view.a, d = read.shape[1], middle = new Array(d).fill(0);
  for (const array of [read, write]) array.values.forEach((v, n) => { middle[n % d] += v / (2 * read.shape[0]); });
  if (d === 3 && !turned.has(view))
    turned.set(view, [Math.atan2(middle[1], middle[0]) + 0.25, clamp(Math.asin(clamp(middle[2], -1, 1)) + 0.3, -1.2, 1.2)]);
  view.points = { d, row: (array, n) => Array.from(array.values.slice(n * d, n * d + d)) };
  return view.points;
}

function projector(p, view) {
  const { d } = spacePoints(view);
  if (d === 3) {
    const [yaw, pitch] = turned.get(view), size = Math.min(p.width, p.height) / 2 - 16;
    const [cy, sy, cp, sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
    return { size, place: ([x, y, z]) => {
      const [depth, right, up] = [cp * (cy * x + sy * y) + sp * z, cy * y - sy * x, cp * z - sp * (cy * x + sy * y)];
      return [p.width / 2 + size * right, p.height / 2 - size * up, depth];
    } };
  }
  let [lx, hx, ly, hy] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const array of [view.a.read, view.a.write])
    for (let n = 0; n < array.shape[0]; n++) {
      const [x, y] = [array.values[2 * n], array.values[2 * n + 1]];
      [lx, hx, ly, hy] = [Math.min(lx, x), Math.max(hx, x), Math.min(ly, y), Math.max(hy, y)];
    }
  const scale = Math.min((p.width - 60) / Math.max(hx - lx, 1e-3), (p.height - 60) / Math.max(hy - ly, 1e-3));
  return { place: ([x, y]) => [
    p.width / 2 + scale * (x - (lx + hx) / 2), p.height / 2 - scale * (y - (ly + hy) / 2), 1,
  ] };
}

figures.space = {
  height: (width) => clamp(0.7 * width, 260, 400),
  keys: [["write", "keys written"], ["read", "read head"]],
  draw(p, view, at, moment) {
    const { c } = p, { d, row } = spacePoints(view), { place, size } = projector(p, view);
    const { read, write, strength } = view.a, end = Math.min(at, view.first - 1);
    if (d === 3) {
      c.strokeStyle = p.color("faint"); c.lineWidth = 1;
      c.beginPath(); c.arc(p.width / 2, p.height / 2, size, 0, 7); c.stroke();
      for (let k = 0; k < 12; k++)
        for (const half of [0, 1]) {
          c.beginPath();
          for (let n = 0; n <= 48; n++) {
            const a = (n / 48) * 2 * Math.PI, lat = -Math.PI / 2 + ((k + 1) * Math.PI) / 12, lon = (k * Math.PI) / 6;
            const point = half ? [Math.cos(a) * Math.cos(lat), Math.sin(a) * Math.cos(lat), Math.sin(lat)]
              : [Math.cos(lon) * Math.cos(a), Math.sin(lon) * Math.cos(a), Math.sin(a)];
            const [x, y, depth] = place(point);
            if (n === 0 || depth < 0) c.moveTo(x, y); else c.lineTo(x, y);
          }
          c.globalAlpha = 0.7; c.stroke(); c.globalAlpha = 1;
        }
    }
    const path = (array, from, to, colour, width, fade) => {
      c.strokeStyle = colour; c.lineWidth = width;
      for (let n = Math.max(1, from); n <= to; n++) {
        const [a, b] = [place(row(array, n - 1)), place(row(array, n))];
        c.globalAlpha = fade ? 0.15 + 0.75 * Math.max(0, 1 - (to - n) / 14) : b[2] < 0 ? 0.15 : 0.45;
        c.beginPath(); c.moveTo(a[0], a[1]); c.lineTo(b[0], b[1]); c.stroke();
      }
      c.globalAlpha = 1;
    };
    path(write, 0, end, p.color("write"), 1, false);
    const taken = [];
    for (let n = 0; n <= end; n++) {
      const [x, y, depth] = place(row(write, n));
      c.globalAlpha = (depth < 0 ? 0.3 : 1) * (0.12 + 0.88 * strength.values[n]);
      c.fillStyle = p.color("write"); c.beginPath(); c.arc(x, y, 4.5, 0, 7); c.fill();
      const words = symbol(moment, n);
      if (words && depth >= 0 && strength.values[n] > 0.05 && !taken.some(([u, v]) => Math.abs(u - x) < 22 && Math.abs(v - y) < 13)) {
        taken.push([x, y]); c.globalAlpha = 1; p.text(words, x + 8, y - 8, "ink");
      }
      c.globalAlpha = 1;
    }
    const ring = (array, n, name) => {
      const [x, y] = place(row(array, n));
      c.strokeStyle = p.color(name); c.lineWidth = 2; c.beginPath(); c.arc(x, y, 8, 0, 7); c.stroke();
    };
    if (at >= 0) {
      path(read, at < view.first ? 0 : view.first, at, p.color("read"), 2, true);
      if (at < view.first) ring(write, at, "write");
      const [x, y] = place(row(read, at));
      c.fillStyle = p.color("read"); c.beginPath(); c.arc(x, y, 5, 0, 7); c.fill(); ring(read, at, "read");
    }
  },
  say(view, at, moment) {
    if (at < 0) return "";
    if (at < view.first) return `Writes a key${symbol(moment, at) ? ` for ${symbol(moment, at)}` : ""}, strength ${percent(view.a.strength.values[at])}.`;
    const { row } = spacePoints(view), here = row(view.a.read, at);
    let [best, least] = [-1, Infinity];
    for (let n = 0; n < view.first; n++) {
      const gap = Math.hypot(...row(view.a.write, n).map((v, k) => v - here[k]));
      if (view.a.strength.values[n] > 0.05 && gap < least) [best, least] = [n, gap];
    }
    return best < 0 ? "" : `The read head is nearest the key of ${symbol(moment, best) || moment.steps[best]} (distance ${least.toFixed(2)}).`;
  },
};

// Weights over slots, cells or addresses --------------------------------------------------------------------------------

const paintOf = (p, name, order) => p.color({ read: order ? ["read", "third", "fourth"][order % 3] : "read", write: "write", usage: "soft" }[name]);

function headsOf(view, p) {
  let reads = 0;
  return Object.entries(view.a).map(([name, array]) => {
    const [kind, label] = name.split(":");
    return { array, kind, label, colour: p && paintOf(p, kind, kind === "read" ? reads++ : 0) };
  });
}

// The contents of each cell of a tape: the symbol of the last step with the write head at this cell.
function contents(view, at, moment) {
  const writes = Object.entries(view.a).find(([name]) => name.startsWith("write"));
  if (view.what !== "cell" || !writes) return null;
  const array = writes[1], cells = new Array(array.shape[1]).fill("");
  for (let step = 0; step <= at; step++)
    for (let n = 0; n < cells.length; n++)
      if (Math.abs(at2(array, step, n)) > 0.5 && symbol(moment, step)) cells[n] = symbol(moment, step);
  return cells;
}

figures.slots = {
  height: (width, view) => clamp(30 + 15 * Object.values(view.a)[0].shape[1], 150, 380),
  keys: (view) => headsOf(view).map(({ kind, label }, n) => [kind === "usage" ? "soft" : kind === "write" ? "write" : ["read", "third", "fourth"][n % 3], label]),
  draw(p, view, at, moment) {
    const heads = headsOf(view, p), [steps, slots] = heads[0].array.shape;
    const held = contents(view, at, moment), left = 40, side = clamp(p.width * 0.24, 80, 150), low = p.height - 18;
    const width = p.width - left - side - 12, size = (low - 6) / slots;
    grid(p, left, 6, width, low - 6, slots, steps, (slot, step) => heads.map(({ array, kind, colour }) =>
      [Math.abs(at2(array, step, slot)) * (kind === "usage" ? 0.3 : 1), colour]));
    labels(p, view.columns, left - 5, 6, size, "y", "right", 5);
    cursor(p, left, 6, width, low - 6, steps, at);
    p.text("step →", left, p.height - 7); p.text("now", p.width - side, p.height - 7);
    if (at < 0) return;
    const bar = Math.max(1, (size * 0.8) / heads.length);
    heads.forEach(({ array, colour, kind }, k) => {
      for (let slot = 0; slot < slots; slot++) {
        p.c.globalAlpha = kind === "usage" ? 0.4 : 0.9; p.c.fillStyle = colour;
        const length = clamp(Math.abs(at2(array, at, slot)), 0, 1) * (side - 26);
        p.c.fillRect(p.width - side + 22, 6 + slot * size + k * bar + 0.1 * size, Math.max(length, 0.5), bar);
      }
    });
    p.c.globalAlpha = 1;
    if (size >= 10) labels(p, held || view.columns, p.width - side + 18, 6, size, "y", "right", 3);
  },
  say(view, at, moment) {
    if (at < 0) return "";
    const held = contents(view, at, moment);
    return `${headsOf(view).filter(({ kind }) => kind !== "usage").map(({ array, label }) => {
      const [slot, weight] = peak(array, at), holds = held && held[slot] ? `, which holds ${held[slot]}` : "";
      return `${label}: ${percent(Math.abs(weight))} on ${view.what} ${view.columns ? view.columns[slot] : slot + 1}${holds}`;
    }).join("; ")}.`;
  },
};

// A stack ---------------------------------------------------------------------------------------------------------------

const strongest = (view) => (view.most ||= Math.max(1e-6, ...view.a.weight.values));

figures.stack = {
  height: () => 280,
  keys: [["read", "top of the stack first; stronger is more certain"]],
  draw(p, view, at, moment) {
    const { source, weight, actions } = view.a, [steps, depth] = source.shape, side = clamp(p.width * 0.34, 120, 200);
    const low = p.height - 18, size = (low - 6) / depth, left = 34, width = p.width - left - side - 16;
    const most = strongest(view); // in some networks all pushes are weak
    grid(p, left, 6, width, low - 6, depth, steps, (level, step) => [[at2(weight, step, level) / most, p.color("read")]]);
    labels(p, Array.from({ length: depth }, (_, n) => `${n + 1}`), left - 5, 6, size, "y", "right");
    cursor(p, left, 6, width, low - 6, steps, at);
    p.text("step →", left, p.height - 7);
    if (at < 0) return;
    const tall = Math.min(28, size), x = p.width - side + 70;
    for (let level = 0; level < depth; level++) {
      const from = Math.round(at2(source, at, level)) - 1, share = at2(weight, at, level) / most;
      p.c.strokeStyle = p.color("faint"); p.c.strokeRect(x, 6 + level * tall, side - 72, tall - 2);
      if (from < 0) continue;
      p.c.globalAlpha = clamp(share, 0, 1) * 0.55; p.c.fillStyle = p.color("read"); p.c.fillRect(x, 6 + level * tall, side - 72, tall - 2);
      p.c.globalAlpha = 1; if (tall > 11 && share > 0.2) p.text(symbol(moment, from) || moment.steps[from], x + (side - 72) / 2, 5 + (level + 0.5) * tall, "ink", "center");
    }
    view.names.forEach((name, n) => {
      const value = at2(actions, at, n), y = 16 + 34 * n;
      p.text(name, p.width - side, y, "ink"); p.c.fillStyle = p.color("faint"); p.c.fillRect(p.width - side, y + 8, 56, 7);
      p.c.fillStyle = p.color(n ? "write" : "third"); p.c.fillRect(p.width - side, y + 8, 56 * value, 7);
    });
  },
  say(view, at, moment) {
    if (at < 0) return "";
    const [action, share] = peak(view.a.actions, at), from = Math.round(at2(view.a.source, at, 0)) - 1;
    const top = from >= 0 && at2(view.a.weight, at, 0) > 0.3 * strongest(view) ? `on top lies ${symbol(moment, from)}` : "the stack is empty";
    return `${view.names[action]} with ${percent(share)}; ${top}.`;
  },
};

// Numbers over time, and matrices ----------------------------------------------------------------------------------------

figures.lines = {
  height: () => 150,
  keys: (view) => (view.names.length > 1 ? view.names.slice(0, 4).map((name, n) => [["read", "write", "third", "fourth"][n], name]) : []),
  draw(p, view, at) {
    const { values, shape: [steps, count], low, high } = view.a.values, left = 40, width = p.width - left - 6, tall = p.height - 26;
    const y = (v) => 8 + tall * (1 - (v - low) / (high - low || 1)), x = (n) => left + (width * (n + 0.5)) / steps;
    p.c.strokeStyle = p.color("faint"); p.c.lineWidth = 1;
    for (const v of [low, high]) { p.c.beginPath(); p.c.moveTo(left, y(v)); p.c.lineTo(left + width, y(v)); p.c.stroke(); p.text(`${+v.toPrecision(2)}`, left - 5, y(v), "soft", "right"); }
    for (let k = 0; k < count; k++) {
      p.c.strokeStyle = p.color(["read", "write", "third", "fourth"][k % 4]); p.c.lineWidth = 1.6; p.c.globalAlpha = k < 4 ? 1 : 0.5; p.c.beginPath();
      for (let n = 0; n < steps; n++) p.c[n ? "lineTo" : "moveTo"](x(n), y(values[n * count + k]));
      p.c.stroke(); p.c.globalAlpha = 1;
    }
    cursor(p, left, 8, width, tall, steps, at); p.text("step →", left, p.height - 7);
  },
  say: (view, at) => (at < 0 ? "" : `${view.names.map((name, n) => `${name} ${at2(view.a.values, at, n).toFixed(2)}`).join(", ")}.`),
};

figures.map = {
  height: (width, view) => clamp(24 + 6 * view.a.values.shape[1], 120, 320),
  draw(p, view, at) {
    const array = view.a.values, [steps, rows] = array.shape, left = 34, width = p.width - left - 6, tall = p.height - 24;
    grid(p, left, 6, width, tall, rows, steps, (row, step) => signed(p, array, at2(array, step, row)));
    labels(p, view.rows, left - 5, 6, tall / rows, "y", "right"); cursor(p, left, 6, width, tall, steps, at); p.text(`step →   down: ${view.down}`, left, p.height - 7);
  },
  say(view, at) { if (at < 0) return ""; const [row, value] = peak(view.a.values, at); return `Largest: number ${view.rows[row]}, ${value.toFixed(2)}.`; },
};

function matrix(p, view, array, offset, rows, columns) {
  const left = view.rows ? 12 + 7 * Math.min(8, Math.max(...view.rows.map((n) => n.length))) : 12, tall = p.height - 34;
  const side = Math.min((p.width - left - 8) / columns, tall / rows);
  grid(p, left, 20, side * columns, side * rows, rows, columns, (row, column) => signed(p, array, array.values[offset + row * columns + column]));
  labels(p, view.rows, left - 5, 20, side, "y", "right", 8); labels(p, view.columns, left, 12, side, "x");
  if (view.across) p.text(`across: ${view.across}, down: ${view.down}`, left, p.height - 7);
}

figures.frames = {
  height: (width) => clamp(0.8 * width, 240, 420),
  draw(p, view, at) { const [, rows, columns] = view.a.values.shape; matrix(p, view, view.a.values, Math.max(at, 0) * rows * columns, rows, columns); },
  say(view, at) {
    const { values, shape: [, rows, columns] } = view.a.values, start = Math.max(at, 0) * rows * columns;
    let best = 0;
    for (let n = 1; n < rows * columns; n++) if (values[start + n] > values[start + best]) best = n;
    const [row, column] = [Math.floor(best / columns), best % columns], name = (names, n) => (names ? names[n] : n + 1);
    return `Largest: ${name(view.rows, row)} ← ${name(view.columns, column)}, ${values[start + best].toFixed(2)}.`;
  },
};

figures.still = {
  height: figures.frames.height,
  draw(p, view) { const [rows, columns] = view.a.values.shape; matrix(p, view, view.a.values, 0, rows, columns); },
  say: () => "The same at every step.",
};

gallery.figures = figures;
gallery.pen = pen;
gallery.turned = turned;
